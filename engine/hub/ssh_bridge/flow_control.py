"""Flow control of the ssh bridge: limits unacknowledged bytes to what the link carries in 0.5 s.

Between the bridge and the viewer are megabytes of buffers (the window of ssh, sockets). Full
buffers would delay every heartbeat and reply by seconds on a slow link, so the viewer acknowledges
the bytes it has received, and the bridge sends no more than the window allows.
"""

from __future__ import annotations

from collections import deque

DELAY_S = 0.5
MIN_BYTES = 32 * 1024
MAX_BYTES = 4 * 1024 * 1024
_PROBE = 1.25
"""Factor on the measured rate; without a margin a faster link would never be measured."""
_MEMORY_S = 10.0


class SendWindow:
    """The number of bytes that may be sent without acknowledgement; times are monotonic seconds."""

    def __init__(self, sent_bytes: int = 0) -> None:
        self.sent = sent_bytes
        """Total bytes sent."""
        self.received = sent_bytes
        """Total bytes the viewer has acknowledged."""
        self._acknowledged: deque[tuple[float, int]] = deque()
        self._rates: deque[tuple[float, float]] = deque()

    @property
    def limit_bytes(self) -> int:
        """The current limit of unacknowledged bytes, from the best rate of the last 10 seconds."""
        best = max((rate for _, rate in self._rates), default=0.0)
        return int(min(max(best * DELAY_S * _PROBE, MIN_BYTES), MAX_BYTES))

    @property
    def room_bytes(self) -> int:
        """Bytes that may be sent now; negative if more than the limit is unacknowledged."""
        return self.limit_bytes - (self.sent - self.received)

    def acknowledge(self, total_bytes: int, now: float) -> None:
        """Note the total bytes the viewer has received, and measure the rate of the link."""
        self.received = min(max(self.received, total_bytes), self.sent)
        self._acknowledged.append((now, self.received))
        while len(self._acknowledged) > 2 and now - self._acknowledged[1][0] > DELAY_S:
            self._acknowledged.popleft()
        then, had = self._acknowledged[0]
        if now > then:
            self._rates.append((now, (self.received - had) / max(now - then, 0.05)))
        while self._rates and now - self._rates[0][0] > _MEMORY_S:
            self._rates.popleft()
