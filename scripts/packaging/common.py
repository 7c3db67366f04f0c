"""What all packages share: the version, the files that go into each, and archives that come out the same every time."""

import gzip
import hashlib
import io
import os
import subprocess
import tarfile
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
CARGO = tomllib.loads((ROOT / "Cargo.toml").read_text())
VERSION = CARGO["workspace"]["package"]["version"]
SUMMARY = "job queue, leader election and daemons on storage you already have"
LICENCES = ("LICENSE-APACHE", "LICENSE-MIT")


@dataclass(frozen=True)
class Target:
    """One processor, with its name in each kind of package, and what the binary needs from the system."""

    machine: str
    debian: str
    npm: str
    oci: str
    # The minimum version of glibc; None for a static binary, which needs none.
    glibc: tuple[int, int] | None = None

    @property
    def triple(self) -> str:
        return f"{self.machine}-unknown-linux-{'gnu' if self.glibc else 'musl'}"

    @property
    def wheel(self) -> str:
        if self.glibc:
            return f"manylinux_{self.glibc[0]}_{self.glibc[1]}_{self.machine}"
        return ".".join(f"{system}_{self.machine}" for system in ("manylinux_2_17", "manylinux2014", "musllinux_1_1"))


# What is released.
TARGETS = {target.triple: target for target in (Target("x86_64", "amd64", "x64", "amd64"), Target("aarch64", "arm64", "arm64", "arm64"))}


def epoch() -> int:
    """The time of every file: SOURCE_DATE_EPOCH, or that of the last commit. Never the present time, which would differ
    each time."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given:
        return int(given)
    asked = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=False)
    # 1980 is the first year that a zip file can hold.
    return int(asked.stdout) if asked.returncode == 0 and asked.stdout.strip() else 315532800


@dataclass(frozen=True)
class File:
    """A file of a package, or a folder if `content` is None."""

    path: str
    content: bytes | None
    mode: int = 0o644
    owner: int = 0


def read(path: str) -> bytes:
    return (ROOT / path).read_bytes()


def licences(folder: str) -> list[File]:
    return [File(f"{folder}/{name}", read(name)) for name in LICENCES]


@dataclass(frozen=True)
class Manual:
    """Completions and manual pages. They are the same for all targets, so any binary that runs here can write them."""

    bash: bytes
    zsh: bytes
    fish: bytes
    pages: dict[str, bytes]

    @classmethod
    def of(cls, binary: Path) -> "Manual":
        def printed(shell: str) -> bytes:
            return subprocess.run([binary, "completions", shell], stdout=subprocess.PIPE, check=True).stdout

        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([binary, "man", folder], stdout=subprocess.DEVNULL, check=True)
            pages = {path.name: path.read_bytes() for path in sorted(Path(folder).glob("*.1"))}
        return cls(printed("bash"), printed("zsh"), printed("fish"), pages)

    def files(self, share: str, *, zsh: str = "zsh/site-functions", compressed: bool = False) -> list[File]:
        """The files at the paths below `share` where shells and `man` look for them."""
        pages = {f"{name}.gz": packed(page, 9) for name, page in self.pages.items()} if compressed else self.pages
        return [
            File(f"{share}/bash-completion/completions/tenure", self.bash),
            File(f"{share}/{zsh}/_tenure", self.zsh),
            File(f"{share}/fish/vendor_completions.d/tenure.fish", self.fish),
            *(File(f"{share}/man/man1/{name}", page) for name, page in pages.items()),
        ]


def packed(content: bytes, level: int = 6) -> bytes:
    """gzip, without the time and the name that it usually stores."""
    return gzip.compress(content, level, mtime=0)


def tar(files: list[File], *, folders: bool = False, prefix: str = "") -> bytes:
    """A tar file: sorted, with one time for all, and with the owner that each file names; with `folders`, the parent
    folders too."""
    entries = {file.path: file for file in files}
    if len(entries) != len(files):
        raise ValueError("two files of one name")
    if folders:
        for path in list(entries):
            for parent in list(Path(path).parents)[:-1]:
                entries.setdefault(str(parent), File(str(parent), None, 0o755))
    made = io.BytesIO()
    when = epoch()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path in sorted(entries):
            file = entries[path]
            entry = tarfile.TarInfo(prefix + path)
            entry.mode, entry.uid, entry.gid, entry.mtime = file.mode, file.owner, file.owner, when
            if file.content is None:
                entry.type = tarfile.DIRTYPE
                archive.addfile(entry)
            else:
                entry.size = len(file.content)
                archive.addfile(entry, io.BytesIO(file.content))
    return made.getvalue()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
