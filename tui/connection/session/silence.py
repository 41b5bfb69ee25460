"""Detect a connection over which nothing arrives any more."""

from __future__ import annotations

from collections.abc import Callable

STALE_S = 3.0
LOST_S = 10.0


class SilenceTimer:
    """Measures the time since anything was received over a connection."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        """Start as if something had just been received; `monotonic` returns seconds."""
        self._monotonic = monotonic
        self._received_at = monotonic()

    def received(self) -> None:
        """Note that something was received now."""
        self._received_at = self._monotonic()

    @property
    def silent_s(self) -> float:
        """Seconds since anything was received."""
        return self._monotonic() - self._received_at

    @property
    def stale(self) -> bool:
        """Whether nothing was received for more than `STALE_S`; the peer sends every second."""
        return self.silent_s > STALE_S

    @property
    def lost(self) -> bool:
        """Whether nothing was received for more than `LOST_S`; the connection is then given up."""
        return self.silent_s > LOST_S
