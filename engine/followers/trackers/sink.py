"""The interface of a tracker, which the courier delivers to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from .deliveries import Delivery, RunFacts, Timeline

Count = Callable[[str, int], None]
"""Counts what a tracker cannot take: the reason, and how often."""


class TrackerDown(Exception):
    """The tracker cannot be reached or refuses; what was not delivered is delivered later."""


class Sink(Protocol):
    """Writes to one destination; one tracker run is open at a time.

    All methods may raise any exception of the tracker's library.
    """

    def open(
        self, run: RunFacts, timeline: Timeline, attempt: int, noted: dict[str, int | str]
    ) -> int | None:
        """Begin or continue the tracker run of a timeline.

        A new run of the tracker gets the configuration of the run, once.

        Args:
            run: the run.
            timeline: the timeline.
            attempt: which delivery of the whole run it is; another one is another tracker run.
            noted: what `write` returned last for this timeline; empty for a new one.

        Returns:
            Sequence number of the last record that the tracker holds; None if it cannot say, so
            that what was noted is believed.
        """

    def write(self, deliveries: Sequence[Delivery]) -> dict[str, int | str]:
        """Deliver in this order; on return nothing is lost if this process is killed.

        Returns:
            What to note about the tracker run.
        """

    def close(self, outcome: str) -> None:
        """End the open tracker run; without an open one, do nothing.

        Args:
            outcome: `finished` or `failed`; empty if the run continues.
        """
