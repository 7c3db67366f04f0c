"""Time that leadership and leases are counted on.

Guarantees: never goes back, and counts the time that the machine was suspended where the system can say
it (``CLOCK_BOOTTIME`` on Linux). Elsewhere it is ``time.monotonic()``, which may stand still during suspend:
there, pass the fencing token on to whatever the work writes to.
"""

from __future__ import annotations

import time

__all__ = ["now"]

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", None)


def now() -> float:
    """Seconds since some fixed moment of this host. Comparable only with itself."""
    if _BOOTTIME is not None:
        return time.clock_gettime(_BOOTTIME)
    return time.monotonic()
