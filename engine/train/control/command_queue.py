"""Command queue: brings new commands to every rank, the same ones in the same order."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

import msgspec

from ...run.control_log import ControlEntry, ControlReader
from ...run.run_dir import RunDirectory
from ..distributed.agreement import Agreement, PendingResult
from ..signals import StopSignals

_entries = msgspec.msgpack.Decoder(list[ControlEntry])


@dataclass(frozen=True)
class NewCommands:
    """The commands that are new since the last look, and whether a stop signal arrived."""

    entries: list[ControlEntry]
    stop_signal: bool


class CommandQueue:
    """Rank 0 reads the control journal; every rank gets what it read.

    `ask` sends the question on its way before a stretch of computing, `look` reads the answer
    after it. What came in between is for the next look.
    """

    def __init__(self, run: RunDirectory, agreement: Agreement, signals: StopSignals) -> None:
        self._agreement = agreement
        self._signals = signals
        self._reader = ControlReader(run) if agreement.rank == 0 else None
        self._seen = 0
        self._asked: PendingResult[list[int]] | None = None

    @property
    def leads(self) -> bool:
        """This rank reads the control journal and keeps the settings."""
        return self._reader is not None

    def left_over(self, control_seq: int, answered: Set[str]) -> list[ControlEntry]:
        """Commands an earlier incarnation accepted and never answered; they count as read.

        Args:
            control_seq: newest command when this process came up, 0 on every rank but 0; what
                came later is for this incarnation.
            answered: ids that the journal has an outcome of.
        """
        (self._seen,) = self._agreement.max([control_seq])
        mine = self._reader.take(self._seen) if self._reader else []
        return [entry for entry in mine if entry.id not in answered]

    def ask(self) -> None:
        """Start to agree on what is new; with one rank there is nobody to ask."""
        if not self._agreement.alone and self._asked is None:
            self._asked = self._agreement.start_max(self._news())

    def look(self) -> NewCommands:
        """Return the new commands as of the last `ask`; every rank enters this together."""
        asked, self._asked = self._asked, None
        newest, stops = asked.read() if asked else self._agreement.max(self._news())
        if newest <= self._seen:
            return NewCommands([], stops > 0)
        mine = self._reader.take(newest) if self._reader else []
        self._seen = newest
        shared = self._agreement.share(msgspec.msgpack.encode(mine))
        return NewCommands(_entries.decode(shared), stops > 0)

    def _news(self) -> list[int]:
        waiting = self._reader.waiting() if self._reader else 0
        return [waiting, self._signals.count]
