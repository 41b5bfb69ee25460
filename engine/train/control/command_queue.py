"""Command queue: brings new commands to every rank, the same ones in the same order."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass

import msgspec

from ...run.control_log import ControlEntry, ControlReader
from ...run.run_dir import RunDirectory
from ..distributed.agreement import Agreement, PendingResult
from ..signals import StopSignals

_entries = msgspec.msgpack.Decoder(list[ControlEntry])


@dataclass(frozen=True)
class NewCommands:
    """The commands since the previous `look`, and whether a stop signal arrived."""

    entries: list[ControlEntry]
    stop_signal: bool
    save: bool = False
    """Whether checkpoints were removed, so that the state has to be saved again."""


_NOTHING = NewCommands([], stop_signal=False)


class CommandQueue:
    """Reads the control journal on rank 0 and gives its commands to every rank.

    `ask` starts a collective before a longer computation, and `look` reads its result afterwards.
    Commands that arrive in between are returned by the next `look`.
    """

    def __init__(
        self,
        run: RunDirectory,
        agreement: Agreement,
        signals: StopSignals,
        folder_losses: Callable[[], int] = lambda: 0,
    ) -> None:
        """Open the queue.

        Args:
            run: the run whose control journal rank 0 reads.
            agreement: lets the ranks agree on the new commands.
            signals: counts stop signals on this rank.
            folder_losses: returns how often checkpoints of the run were removed.
        """
        self._agreement = agreement
        self._signals = signals
        self._reader = ControlReader(run) if agreement.rank == 0 else None
        self._folder_losses = folder_losses
        self._losses = 0
        self._seen = 0
        self._asked: PendingResult[list[int]] | None = None

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which reads the control journal and stores the settings."""
        return self._reader is not None

    def left_over(self, control_seq: int, answered: Set[str]) -> list[ControlEntry]:
        """Return accepted commands that earlier processes of the run never answered.

        They are marked as read. All ranks call this together; other ranks than 0 get no commands.

        Args:
            control_seq: sequence number of the newest command at the start of this process, 0 on
                other ranks than 0; later commands belong to this process.
            answered: ids of the commands that have an outcome in the journal.
        """
        (self._seen,) = self._agreement.max([control_seq])
        mine = self._reader.take(self._seen) if self._reader else []
        return [entry for entry in mine if entry.id not in answered]

    def ask(self) -> None:
        """Start to agree on the new commands, unless that has begun or there is a single rank."""
        if not self._agreement.alone and self._asked is None:
            self._asked = self._agreement.start_max(self._news())

    def look(self) -> NewCommands:
        """Return the commands that were new at the last `ask`, or without an `ask` those new now.

        All ranks call this together.
        """
        asked, self._asked = self._asked, None
        newest, stops, losses = asked.read() if asked else self._agreement.max(self._news())
        save, self._losses = losses > self._losses, losses
        if newest <= self._seen:
            return NewCommands([], stops > 0, save) if stops or save else _NOTHING
        mine = self._reader.take(newest) if self._reader else []
        self._seen = newest
        shared = self._agreement.share(msgspec.msgpack.encode(mine))
        return NewCommands(_entries.decode(shared), stops > 0, save)

    def close(self) -> None:
        """Release the control journal."""
        if self._reader is not None:
            self._reader.close()

    def _news(self) -> list[int]:
        waiting = self._reader.waiting() if self._reader else 0
        return [waiting, self._signals.count, self._folder_losses()]
