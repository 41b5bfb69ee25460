"""The waiting time between attempts to reconnect: exponential backoff with full jitter."""

from __future__ import annotations

from collections.abc import Callable

FIRST_S = 0.5
LONGEST_S = 30.0
HEALTHY_S = 10.0
"""Seconds after which a connection counts as healthy and the failures before it are forgotten."""
_REACHED = 2
"""Limit of the failure count after a successful login. It is not reset to 0 at once, because fttui
may end immediately on a host that can be reached."""


class Backoff:
    """Computes the waiting times: a random part of a limit that doubles with each failure.

    The randomness keeps many viewers from reconnecting at once. Times are monotonic seconds.
    """

    def __init__(self, chance: Callable[[], float]) -> None:
        """Start without failures; `chance` returns random numbers in [0, 1)."""
        self._chance = chance
        self._connected_at: float | None = None
        self.failures = 0
        """Failures since the last healthy connection; a successful login lowers it to 2 at most."""

    def connected(self, now: float) -> None:
        """Note that a connection was made at `now`."""
        self._connected_at = now
        self.failures = min(self.failures, _REACHED)

    def failed(self, now: float) -> float:
        """Note that a connection failed or could not be made; return the seconds to wait."""
        if self._connected_at is not None and now - self._connected_at >= HEALTHY_S:
            self.failures = 0
        self._connected_at = None
        limit_s = min(LONGEST_S, FIRST_S * 2.0 ** min(self.failures, 10))
        self.failures += 1
        return self._chance() * limit_s
