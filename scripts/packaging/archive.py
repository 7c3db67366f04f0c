"""The archive, which can be unpacked anywhere: the binary, its manual, and the unit for systemd."""

from pathlib import Path

from .common import VERSION, File, Manual, Target, licences, packed, read, tar


def make(target: Target, binary: bytes, manual: Manual, out: Path) -> Path:
    name = f"tenure-{VERSION}-{target.triple}"
    files = [
        File(f"{name}/bin/tenure", binary, 0o755),
        *manual.files(f"{name}/share"),
        *licences(name),
        File(f"{name}/README.md", read("README.md")),
        File(f"{name}/CHANGELOG.md", read("CHANGELOG.md")),
        File(f"{name}/tenure.service", read("deploy/tenure.service")),
    ]
    path = out / f"{name}.tar.gz"
    path.write_bytes(packed(tar(files, folders=True)))
    return path
