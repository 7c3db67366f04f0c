"""What a binary needs from the system that it runs on, read from the file itself: a package must not promise more."""

import re
import struct
from dataclasses import dataclass

MACHINES = {62: "x86_64", 183: "aarch64"}
INTERPRETER = 3  # PT_INTERP: names the loader of shared libraries; a static binary has none


@dataclass(frozen=True)
class Needs:
    machine: str
    # The newest version of glibc that it needs, such as 2.34; None if it is static.
    glibc: tuple[int, int] | None


def needs(binary: bytes, name: str) -> Needs:
    if binary[:6] != b"\x7fELF\x02\x01":
        raise SystemExit(f"{name} is not a 64-bit Linux program")
    machine = MACHINES.get(struct.unpack_from("<H", binary, 18)[0], "unknown")
    at, size, count = struct.unpack_from("<Q", binary, 32)[0], *struct.unpack_from("<HH", binary, 54)
    kinds = [struct.unpack_from("<I", binary, at + size * number)[0] for number in range(count)]
    if INTERPRETER not in kinds:
        return Needs(machine, None)
    versions = [(int(one), int(two)) for one, two in re.findall(rb"\0GLIBC_(\d+)\.(\d+)(?:\.\d+)?(?=\0)", binary)]
    if not versions:
        raise SystemExit(f"{name} has shared libraries, and none of them is glibc: no package says what it needs")
    return Needs(machine, max(versions))
