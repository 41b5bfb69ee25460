"""Delivers what a tracker does not have yet; depends on neither files nor trackers.

A record counts as delivered once the sink has returned and the ledger is saved. If a process dies
in between, the tracker itself says at the next opening how far it got.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import groupby

from ...protocol.events import Record
from ...protocol.states import RunState
from .deliveries import Delivery, RunFacts
from .ledger import Ledger
from .sink import Sink
from .story import Story

_BATCH = 500
"""Deliveries between two saves of the ledger."""
_FAILED = (RunState.FAILED, RunState.UNSAVED, RunState.LOST)


class BeginAgain(Exception):
    """The tracker has lost records that were delivered; the journal must be read from the start."""


class Courier:
    """Delivers the records of one run, in their order, to one sink."""

    def __init__(self, run: RunFacts, sink: Sink, ledger: Ledger, save: Callable[[], None]) -> None:
        self._run = run
        self._sink = sink
        self._ledger = ledger
        self._save = save
        self._story = Story()
        self._open: int | None = None
        """The timeline whose tracker run is open."""
        self.delivered = 0
        """Records that were delivered since the start of this process."""

    def deliver(self, records: Iterable[Record]) -> None:
        """Take in the next records of the journal and deliver what the tracker does not hold.

        Raises:
            BeginAgain: `restart`, then come with the first record of the journal.
            Exception: the sink failed; do the same a little later.
        """
        told = ((record, self._story.add(record)) for record in records)
        for number, group in groupby(told, key=lambda pair: pair[0].timeline):
            entry = self._ledger.of(number)
            due = [item for _, item in group if item is not None and not entry.closed]
            self._pass_on(number, [item for item in due if item.seq > entry.through_seq])

    def _needs_a_look(self, number: int) -> bool:
        """Whether the process before this one did not close the tracker run."""
        return not self._ledger.of(number).settled and self._open != number

    def _pass_on(self, number: int, items: list[Delivery]) -> None:
        entry = self._ledger.of(number)
        if items or self._needs_a_look(number):
            self._enter(number)
        items = [item for item in items if item.seq > entry.through_seq]
        for start in range(0, len(items), _BATCH):
            batch = items[start : start + _BATCH]
            entry.noted = self._written(batch)
            entry.through_seq = batch[-1].seq
            self.delivered += len(batch)
            self._save()

    def _written(self, batch: list[Delivery]) -> dict[str, int | str]:
        """Write a batch; what it left out is counted only if it was written."""
        left_out = dict(self._ledger.left_out)
        try:
            return self._sink.write(batch)
        except Exception:
            self._ledger.left_out = left_out
            raise

    def _enter(self, number: int) -> None:
        """Open the tracker run of a timeline, and find out how much of it the tracker has."""
        if self._open == number:
            return
        if self._open is not None:
            self._leave("finished")
        for earlier, entry in self._ledger.timelines.items():
            entry.closed = entry.closed or earlier < number
        entry = self._ledger.of(number)
        timeline = self._story.timelines[number]
        held = self._sink.open(self._run, timeline, self._ledger.attempt, entry.noted)
        self._open = number
        entry.settled = False
        if held is None:
            return
        lost = held < entry.through_seq
        entry.through_seq = held
        if lost:
            raise BeginAgain

    def _leave(self, outcome: str) -> None:
        number, self._open = self._open, None
        self._sink.close(outcome)
        if number is not None:
            self._ledger.of(number).settled = True

    def restart(self) -> None:
        """Forget what was read, and close the tracker run; the ledger keeps what is delivered."""
        self._story = Story()
        with suppress(Exception):  # a tracker that failed may also fail to close
            self._leave("")

    def conclude(self, *, engine_works: bool) -> None:
        """Close the tracker run as the journal ends, and save the ledger."""
        outcome = "" if engine_works else self._outcome()
        self._leave(outcome)
        self._save()

    def _outcome(self) -> str:
        ended = self._story.ended
        return "failed" if ended is None or ended.state in _FAILED else "finished"

    @property
    def left_out(self) -> Sequence[tuple[str, int]]:
        """What the tracker could not take, by reason."""
        return sorted(self._ledger.left_out.items())
