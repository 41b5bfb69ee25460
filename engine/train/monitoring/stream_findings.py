"""Stream findings: reports the findings in streamed training data while it is read."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from ...data.findings import Findings
from ...protocol.events import AnyEvent, DataFindingsChanged, RunEnded
from ..event_log import EventLog

EVERY_S = 30.0
"""Seconds between two reports of counts that only grow; a new reason is reported at once."""

log = logging.getLogger(__name__)


class StreamFindings:
    """Publishes the findings of a rank in streamed data, and warns of shares above their limits.

    Args:
        known: Findings about the data that were loaded before training, such as evaluation data.
        streamed: Findings about the stream; they grow while it is read.
        accepted: The reasons in `data.accept`.
        event_log: Records the findings on rank 0.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        known: Findings,
        streamed: Findings,
        accepted: Sequence[str],
        event_log: EventLog,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._known = known
        self._streamed = streamed
        self._accepted = accepted
        self._event_log = event_log
        self._clock = clock
        self._reported: dict[str, int] = {}
        self._warned: set[str] = set()
        self._due = 0.0
        event_log.listen(self._follow)

    def _follow(self, event: AnyEvent) -> None:
        """Publish the final counts before the run ends."""
        if isinstance(event, RunEnded):
            self._due = 0.0
            self.report()

    def report(self) -> None:
        """Publish the findings if there is a new reason, or if counts grew and it is time.

        Then also warn of shares above their limits, of each reason once.
        """
        counts = {one.reason.name: one.count for one in self._streamed}
        now = self._clock()
        if counts == self._reported or (counts.keys() == self._reported.keys() and now < self._due):
            return
        self._reported, self._due = counts, now + EVERY_S
        together = Findings()
        together.add(self._known)
        together.add(self._streamed)
        self._event_log.record(DataFindingsChanged(findings=together.to_structs()))
        self._warn()

    def _warn(self) -> None:
        """Log each reason whose share exceeds its limit, once."""
        for found in self._streamed:
            if found.reason.name in self._warned or not found.needs_consent(self._accepted):
                continue
            self._warned.add(found.reason.name)
            log.warning(
                "data: %s; %s, or set data.accept: [%s] to accept it",
                found.line,
                found.reason.remedy,
                found.reason.name,
            )
