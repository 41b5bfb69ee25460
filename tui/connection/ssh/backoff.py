"""When to try again: soon at first, then ever more rarely, and never all viewers at once."""

from __future__ import annotations

from collections.abc import Callable

FIRST_S = 0.5
LONGEST_S = 30.0
HEALTHY_S = 10.0
"""A connection that held for so long was a good one."""
_REACHED = 2
"""Of the failures before a login that succeeded so many still count: the machine is there, but what
runs on it may die at once, again and again."""


class Backoff:
    """Full jitter: a random part of a limit that doubles; times are monotonic seconds."""

    def __init__(self, chance: Callable[[], float]) -> None:
        """Start fresh; `chance` gives numbers in [0, 1)."""
        self._chance = chance
        self._connected_at: float | None = None
        self.failures = 0
        """In a row, without a healthy connection in between."""

    def connected(self, now: float) -> None:
        """A connection stands."""
        self._connected_at = now
        self.failures = min(self.failures, _REACHED)

    def failed(self, now: float) -> float:
        """It failed or could not be made; returns the seconds to wait."""
        if self._connected_at is not None and now - self._connected_at >= HEALTHY_S:
            self.failures = 0
        self._connected_at = None
        limit_s = min(LONGEST_S, FIRST_S * 2.0 ** min(self.failures, 10))
        self.failures += 1
        return self._chance() * limit_s
