"""A finished or dead run, read from its folder."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

from fttui.engine.protocol.commands import AnyCommand
from fttui.engine.run.control_log import find_decision
from fttui.engine.run.heartbeat import beat_from_folder
from fttui.engine.run.journal import FrameReader
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
from .record_merger import RecordMerger, deliveries
from .session_feed import SessionFeed
from .viewer_identity import issuer, new_command_id, new_viewer

_READ_BYTES = 512 * 1024


def read_rest(run: RunDirectory, merger: RecordMerger, offset: int = 0) -> Iterator[Delivery]:
    """What a dead run's journal holds beyond the records seen, then how the run ended."""
    reader = FrameReader(run.journal, offset)
    while frames := reader.read(_READ_BYTES):
        yield from deliveries(merger.history(payload for _, payload in frames))
        yield HistoryProgressed(seq=merger.last_seq, head_seq=merger.last_seq)
    yield BeatArrived(beat_from_folder(run, merger.last_seq, now=time.time()))


def decided_on_disk(run: RunDirectory, id_: str) -> CommandAnswered:
    """What a hub that is gone decided about a command."""
    if (entry := find_decision(run, id_)) is not None:
        accepted = entry.rejected is None
        return CommandAnswered(id=id_, accepted=accepted, reason=entry.rejected or "")
    reason = "the run ended before the command reached it"
    return CommandAnswered(id=id_, accepted=False, reason=reason)


class OfflineSession:
    """A viewer of a run that no process works on."""

    def __init__(self, run: RunDirectory) -> None:
        self.run_id = run.id
        self.viewer = new_viewer()
        self.issuer = issuer()
        self.read_only = True
        self._run = run
        self._feed = SessionFeed()

    async def listen(self, deliver: Deliver) -> None:
        """Deliver the whole journal, then say that this was all."""
        self._feed.start(deliver)
        read = await read_history(self._run, self._feed.deliver)
        self._feed.start_after(read)
        for delivery in read_rest(self._run, self._feed.merger, read.offset):
            self._feed.deliver(delivery)
            await asyncio.sleep(0)
        self._feed.set_link(Link.ENDED, "read from disk")

    def submit(
        self, command: AnyCommand, *, reason: str = "", if_generation: int | None = None
    ) -> str:
        """Answer that nobody is there to obey; returns the id."""
        id_ = new_command_id()
        why = f"no engine works on this run; go on with: fttui run --resume {self.run_id}"
        answer = CommandAnswered(id=id_, accepted=False, reason=why)
        asyncio.get_running_loop().call_soon(self._feed.deliver, answer)
        return id_

    async def take_control(self) -> str | None:
        """There is nothing to control."""
        return "no engine works on this run"

    async def release_control(self) -> None:
        """There is nothing to give up."""

    async def fetch_report(self, report: str) -> str:
        """An anomaly report as Markdown."""
        return read_report(self._run, report)

    async def close(self) -> None:
        """Leave."""
