"""How long to wait before something is tried again.

The wait doubles up to a bound. Half of it is random, so that clients that lost the leader at the same moment do not all
return at the same moment.
"""

from __future__ import annotations

import random
from typing import Callable

__all__ = ["Backoff"]


class Backoff:
    """Waits in seconds: each between half and all of ``first * 2**n``, never more than ``most``.

    >>> waits = Backoff(first=0.1, most=1.0)
    >>> 0.05 <= waits.next() <= 0.1, 0.1 <= waits.next() <= 0.2
    (True, True)
    """

    def __init__(self, first: float = 0.05, most: float = 2.0, chance: Callable[[], float] = random.random) -> None:
        self._first, self._most, self._chance = first, most, chance
        self._tries = 0

    def next(self) -> float:
        """The next wait."""
        # Bounded, so that a client that waits for days does not compute ever larger powers.
        whole = min(self._most, self._first * 2.0 ** min(self._tries, 30))
        self._tries += 1
        return whole * (0.5 + self._chance() / 2)

    def reset(self) -> None:
        """Starts over after a success."""
        self._tries = 0
