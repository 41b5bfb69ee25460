"""The session of a run that no process works on, read from its run folder."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

from fttui.engine.protocol.commands import AnyCommand
from fttui.engine.run.control_log import find_decision
from fttui.engine.run.journal import DamagedPart, FrameReader, read_past_damage
from fttui.engine.run.processes.heartbeat import beat_from_folder
from fttui.engine.run.reports import read_report
from fttui.engine.run.run_dir import RunDirectory

from ..view_model.connection_port import (
    BeatArrived,
    CommandAnswered,
    Deliver,
    Delivery,
    HistoryProgressed,
    Link,
)
from .history_reader import read_history
from .session.record_merger import RecordMerger, deliveries
from .session.session_feed import SessionFeed
from .viewer_identity import issuer, new_command_id, new_viewer

_READ_BYTES = 512 * 1024


def read_rest(run: RunDirectory, merger: RecordMerger, offset: int = 0) -> Iterator[Delivery]:
    """Yield the records of an ended run that were not delivered yet, then a last heartbeat.

    Args:
        run: the run.
        merger: knows which records were delivered.
        offset: offset in the journal, in bytes, at which to begin to read.
    """
    reader = FrameReader(run.journal, offset)
    while frames := reader.read(_READ_BYTES):
        yield from deliveries(merger.history(payload for _, payload in frames))
        yield HistoryProgressed(seq=merger.last_seq, head_seq=merger.last_seq)
    later = list(read_past_damage(run.journal, reader.offset)) if run.journal.exists() else []
    yield from deliveries(merger.history(part for part in later if isinstance(part, bytes)))
    damaged = sum(part.size_bytes for part in later if isinstance(part, DamagedPart))
    beat = beat_from_folder(run, merger.last_seq, now=time.time(), damaged_bytes=damaged)
    yield BeatArrived(beat)


def decided_on_disk(run: RunDirectory, id_: str) -> CommandAnswered:
    """Return the decision on a command that the run's last hub stored; a rejection without one."""
    if (entry := find_decision(run, id_)) is not None:
        accepted = entry.rejected is None
        return CommandAnswered(id=id_, accepted=accepted, reason=entry.rejected or "")
    reason = "the run ended before the command reached it"
    return CommandAnswered(id=id_, accepted=False, reason=reason)


class OfflineSession:
    """A viewer's session of a run that no process works on; it is read-only."""

    def __init__(self, run: RunDirectory) -> None:
        self.run_id = run.id
        self.viewer = new_viewer()
        self.issuer = issuer()
        self.read_only = True
        self._run = run
        self._feed = SessionFeed()
        self._no_engine = f"no engine is running for this run; {run.resume_hint}"

    async def listen(self, deliver: Deliver) -> None:
        """Deliver the journal (a long one with old steps thinned), a heartbeat, `Link.ENDED`."""
        self._feed.start(deliver)
        read = await read_history(self._run, self._feed.deliver)
        self._feed.start_after(read)
        for delivery in read_rest(self._run, self._feed.merger, read.offset):
            self._feed.deliver(delivery)
            await asyncio.sleep(0)
        self._feed.set_link(Link.ENDED, "read from disk")

    def submit(
        self,
        command: AnyCommand,
        *,
        reason: str = "",
        if_generation: int | None = None,
        take: bool = False,
    ) -> str:
        """Return an id, and deliver that the command is refused because no engine runs."""
        id_ = new_command_id()
        answer = CommandAnswered(id=id_, accepted=False, reason=self._no_engine)
        asyncio.get_running_loop().call_soon(self._feed.deliver, answer)
        return id_

    async def take_control(self) -> str | None:
        """Return why control cannot be taken: no engine is running for the run."""
        return self._no_engine

    async def release_control(self) -> None:
        """Do nothing: this viewer never has control."""

    async def fetch_report(self, report: str) -> str:
        """Return an anomaly report as Markdown.

        Raises:
            FttuiError: there is no report of that name.
        """
        return read_report(self._run, report)

    async def close(self) -> None:
        """Do nothing: no connection is open."""
