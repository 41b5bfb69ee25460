"""Commands as they reach the step loop: the same ones, in the same order, on every rank."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from ..run.control import ControlEntry, ControlReader
from ..run.layout import RunDirectory
from .agree import Agreement
from .signals import StopSignals

_entries = msgspec.msgpack.Decoder(list[ControlEntry])


@dataclass(frozen=True)
class Mail:
    """What one look into the inbox brought."""

    entries: list[ControlEntry]
    stop_signal: bool


class Inbox:
    """Rank 0 reads the control journal; every rank gets what it read."""

    def __init__(self, run: RunDirectory, agreement: Agreement, signals: StopSignals) -> None:
        self._agreement = agreement
        self._signals = signals
        self._reader = ControlReader(run) if agreement.rank == 0 else None
        self._seen = 0

    @property
    def leads(self) -> bool:
        """This rank reads the control journal and keeps the settings."""
        return self._reader is not None

    def left_over(self, control_seq: int, answered: frozenset[str]) -> list[ControlEntry]:
        """Commands an earlier incarnation accepted and never answered; they count as read.

        Args:
            control_seq: newest command when this process came up, 0 on every rank but 0; what
                came later is for this incarnation.
            answered: ids that the journal has an outcome of.
        """
        (self._seen,) = self._agreement.max([control_seq])
        mine = self._reader.take(self._seen) if self._reader else []
        return [entry for entry in mine if entry.id not in answered]

    def look(self) -> Mail:
        """Agree on what is new; every rank enters this at the same point."""
        waiting = self._reader.waiting() if self._reader else 0
        newest, stops = self._agreement.max([waiting, self._signals.count])
        if newest <= self._seen:
            return Mail([], stops > 0)
        mine = self._reader.take(newest) if self._reader else []
        self._seen = newest
        shared = self._agreement.share(msgspec.msgpack.encode(mine))
        return Mail(_entries.decode(shared), stops > 0)
