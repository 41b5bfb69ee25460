"""How many bytes may be under way: about half a second's worth of what the link carries.

Between the bridge and the viewer lie megabytes of buffers (ssh's own window, sockets). Filled, they
would delay every heartbeat and every answer by seconds on a slow link, so the viewer acknowledges
what has arrived and the bridge keeps no more than this on the way.
"""

from __future__ import annotations

from collections import deque

DELAY_S = 0.5
MIN_BYTES = 32 * 1024
MAX_BYTES = 4 * 1024 * 1024
_PROBE = 1.25
"""Always a little more than the link was seen to carry, or a faster one would never be noticed."""
_MEMORY_S = 10.0


class SendWindow:
    """Times are monotonic seconds."""

    def __init__(self, sent_bytes: int = 0) -> None:
        self.sent = sent_bytes
        """Bytes sent in all."""
        self.received = sent_bytes
        """Bytes the viewer has acknowledged."""
        self._acknowledged: deque[tuple[float, int]] = deque()
        self._rates: deque[tuple[float, float]] = deque()

    @property
    def limit_bytes(self) -> int:
        """What may be under way now."""
        best = max((rate for _, rate in self._rates), default=0.0)
        return int(min(max(best * DELAY_S * _PROBE, MIN_BYTES), MAX_BYTES))

    @property
    def room_bytes(self) -> int:
        """What may be sent now; negative when too much is under way."""
        return self.limit_bytes - (self.sent - self.received)

    def acknowledge(self, total_bytes: int, now: float) -> None:
        """The viewer has received so much in all."""
        self.received = min(max(self.received, total_bytes), self.sent)
        self._acknowledged.append((now, self.received))
        while len(self._acknowledged) > 2 and now - self._acknowledged[1][0] > DELAY_S:
            self._acknowledged.popleft()
        then, had = self._acknowledged[0]
        if now > then:
            self._rates.append((now, (self.received - had) / max(now - then, 0.05)))
        while self._rates and now - self._rates[0][0] > _MEMORY_S:
            self._rates.popleft()
