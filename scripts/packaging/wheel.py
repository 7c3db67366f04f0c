"""The Python package: `pip install` brings the client, and the `tenure` command where there is a binary for it.

All wheels are the same version of one package. pip takes the one with the binary where it fits, and the one without it
on every other system.
"""

import base64
import hashlib
import io
import time
import tomllib
import zipfile
from pathlib import Path

from .common import LICENCES, ROOT, VERSION, File, Manual, Target, epoch, read

CLIENT = ROOT / "clients/python"


def make(target: Target | None, binary: bytes, manual: Manual | None, out: Path) -> Path:
    """Makes a wheel with a binary for `target`, or one without a binary for any system."""
    project = tomllib.loads((CLIENT / "pyproject.toml").read_text())["project"]
    if project["version"] != VERSION:
        raise SystemExit(f"clients/python/pyproject.toml is version {project['version']}, Cargo.toml is {VERSION}")
    name = f"{project['name']}-{VERSION}"
    tags = [f"py3-none-{platform}" for platform in (target.wheel.split(".") if target else ["any"])]
    source = CLIENT / "src"
    files = [
        File(path.relative_to(source).as_posix(), path.read_bytes())
        for path in sorted((source / "tenure").rglob("*"))
        if path.is_file() and path.suffix in (".py", ".typed")
    ]
    if target and manual:
        files.append(File(f"{name}.data/scripts/tenure", binary, 0o755))
        files += manual.files(f"{name}.data/data/share")
    information = f"{name}.dist-info"
    files += [File(f"{information}/licenses/{licence}", read(licence)) for licence in LICENCES]
    files.append(File(f"{information}/METADATA", metadata(project)))
    files.append(File(f"{information}/WHEEL", wheel(tags, pure=target is None)))
    files.append(File(f"{information}/RECORD", record(files, f"{information}/RECORD")))
    path = out / f"{name}-py3-none-{target.wheel if target else 'any'}.whl"
    path.write_bytes(zipped(files))
    return path


def metadata(project: dict) -> bytes:
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {project['name']}",
        f"Version: {project['version']}",
        f"Summary: {project['description']}",
        f"License-Expression: {project['license']['text']}",
        *(f"License-File: {name}" for name in LICENCES),
        f"Keywords: {','.join(project['keywords'])}",
        *(f"Classifier: {classifier}" for classifier in project["classifiers"]),
        f"Requires-Python: {project['requires-python']}",
        *(f"Requires-Dist: {one}" for one in project["dependencies"]),
        "Description-Content-Type: text/markdown",
        "",
        (CLIENT / project["readme"]).read_text(),
    ]
    return "\n".join(lines).encode()


def wheel(tags: list[str], *, pure: bool) -> bytes:
    lines = ["Wheel-Version: 1.0", "Generator: tenure scripts/dist", f"Root-Is-Purelib: {str(pure).lower()}"]
    return "\n".join([*lines, *(f"Tag: {tag}" for tag in tags), ""]).encode()


def record(files: list[File], itself: str) -> bytes:
    lines = []
    for file in files:
        digest = base64.urlsafe_b64encode(hashlib.sha256(file.content or b"").digest()).rstrip(b"=").decode()
        lines.append(f"{file.path},sha256={digest},{len(file.content or b'')}\n")
    return "".join([*sorted(lines), f"{itself},,\n"]).encode()


def zipped(files: list[File]) -> bytes:
    made = io.BytesIO()
    when = time.gmtime(epoch())[:6]
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        # Metadata files come last, as the format advises.
        for file in sorted(files, key=lambda file: (".dist-info/" in file.path, file.path)):
            entry = zipfile.ZipInfo(file.path, when)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3  # Unix: the mode below counts
            entry.external_attr = (0o100000 | file.mode) << 16
            archive.writestr(entry, file.content or b"")
    return made.getvalue()
