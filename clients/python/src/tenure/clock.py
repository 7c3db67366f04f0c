"""Time that leadership and leases are counted on.

Guarantees: it never goes back, and it counts the time that the machine was suspended if the system offers that
(``CLOCK_BOOTTIME`` on Linux). Elsewhere it is ``time.monotonic()``, which may stand still during suspend: there, send the
fencing token to everything that the work writes to.
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
