"""The static binaries: `cargo build` for musl, with a C compiler that makes them for every processor from any host.

Static, so that one file runs on every Linux. musl, since even a static glibc needs shared libraries to look up names;
musl reads /etc/hosts and /etc/resolv.conf itself. `scripts/test-dist` looks a name up in a folder with nothing else in
it.
"""

import os
import subprocess
from pathlib import Path

from .common import ROOT, epoch

HERE = Path(__file__).resolve().parent


def target_folder() -> Path:
    return Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).absolute()


def lacking(triple: str) -> str | None:
    """What is missing to build for this target, or None."""
    asked = subprocess.run(["rustc", "--print", "sysroot"], cwd=ROOT, capture_output=True, text=True, check=False)
    if asked.returncode:
        return "rustc is not installed"
    if not (Path(asked.stdout.strip()) / "lib/rustlib" / triple).is_dir():
        return f"its standard library is not installed: rustup target add {triple}"
    compiler = subprocess.run([HERE / "zig", "version"], capture_output=True, text=True, check=False)
    if compiler.returncode:
        return f"there is no C compiler for it: {compiler.stderr.strip().splitlines()[-1]}"
    return None


def build(triple: str, profile: str) -> Path:
    target = target_folder()
    words = triple.replace("-", "_")
    environment = os.environ | {
        f"CC_{words}": str(HERE / "zig-cc"),
        f"AR_{words}": str(HERE / "zig-ar"),
        # Rust brings its own linker, start files and C library for musl.
        f"CARGO_TARGET_{words.upper()}_LINKER": "rust-lld",
        "SOURCE_DATE_EPOCH": str(epoch()),
        # Panic messages name source files by their paths in the project, not on the build host.
        f"CARGO_TARGET_{words.upper()}_RUSTFLAGS": " ".join(remap()),
    }
    command = ["cargo", "build", "--locked", "-p", "tenure-cli", "--profile", profile, "--target", triple]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
    folder = "debug" if profile == "dev" else profile
    return target / triple / folder / "tenure"


def remap() -> list[str]:
    cargo = Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo"))
    return [f"--remap-path-prefix={ROOT}=/tenure", f"--remap-path-prefix={cargo}=/cargo"]
