"""The clock for leadership and leases.

Guarantees: it never goes back, and it counts the time that the machine was suspended if the system offers that
(``CLOCK_BOOTTIME`` on Linux). Elsewhere it is ``time.monotonic()``, which may stand still during suspend: there, send the
fencing token to everything that the work writes to.
"""

from __future__ import annotations

import os
import time
import uuid
from typing import Optional

__all__ = ["host", "now", "now_ns"]

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", None)
#: The time namespace that every host starts with, by the number in the kernel's `proc_ns.h`.
_FIRST_TIME_NAMESPACE = "time:[4026531834]"


def now() -> float:
    """Seconds since some fixed moment of this host. Comparable only with other readings of this clock."""
    if _BOOTTIME is not None:
        return time.clock_gettime(_BOOTTIME)
    return time.monotonic()


def now_ns() -> int:
    """The same in nanoseconds."""
    if _BOOTTIME is not None:
        return time.clock_gettime_ns(_BOOTTIME)
    return time.monotonic_ns()


def host() -> Optional[str]:
    """Names this clock: the random id that the kernel drew when the host started, in hexadecimal digits.

    Two readings are comparable, even between processes, if both have this name. None where there is no such clock, or
    where it may have been moved: a time namespace can do that, and its id stays the same.
    """
    if _BOOTTIME is None:
        return None
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = uuid.UUID(file.read().strip())
    except (OSError, ValueError):
        return None
    try:
        if os.readlink("/proc/self/ns/time") != _FIRST_TIME_NAMESPACE:
            return None
    except FileNotFoundError:
        pass  # A kernel without time namespaces has only the first one.
    except OSError:
        return None
    return boot.hex
