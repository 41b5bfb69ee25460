"""Sessions against a real hub and an engine double, through kills, stops and ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fttui.engine.errors import FttuiError, JournalReplaced, NoSuchRun, NotOwner, ProtocolMismatch
from fttui.engine.protocol.codec import encode
from fttui.engine.protocol.commands import AddNote, Pause, ScaleLr
from fttui.engine.protocol.events import CommandApplied, Record, RunEnded
from fttui.engine.protocol.requests import Beat
from fttui.engine.protocol.states import RunState
from fttui.engine.run.control_log import ControlEntry, ControlReader
from fttui.engine.run.journal import FrameReader, FrameWriter
from fttui.engine.run.processes import ownership
from fttui.engine.run.processes.marks import read_endpoint
from fttui.engine.run.run_dir import RunDirectory
from fttui.tui.connection import hub_stream, local
from fttui.tui.connection.factory import open_session
from fttui.tui.connection.local import LocalSession
from fttui.tui.connection.offline import OfflineSession
from fttui.tui.connection.session import silence
from fttui.tui.view_model.connection_port import (
    BeatArrived,
    CommandAnswered,
    Delivery,
    HistoryProgressed,
    Link,
    LinkChanged,
    RecordsArrived,
    Session,
)
from tests.support.engine_double import EngineDouble, journal_payloads, make_run
from tests.support.matrix import in_part
from tests.support.waiting import eventually, until

from .conftest import StartRun, hub_up, kill_hub


class Watcher:
    """Collects what a session delivers."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.records: list[Record] = []
        self.links: list[Link] = []
        self.answers: dict[str, CommandAnswered] = {}
        self.progress: list[HistoryProgressed] = []
        self.largest_delivery = 0
        self.beat: Beat | None = None
        self.task = asyncio.create_task(session.listen(self._take))

    def _take(self, delivery: Delivery) -> None:
        match delivery:
            case RecordsArrived(records=records):
                self.records += records
                self.largest_delivery = max(self.largest_delivery, len(records))
            case LinkChanged(link=link):
                self.links.append(link)
            case CommandAnswered(id=id_):
                assert id_ not in self.answers, "answered twice"
                self.answers[id_] = delivery
            case HistoryProgressed():
                self.progress.append(delivery)
            case BeatArrived(beat=beat):
                self.beat = beat

    @property
    def link(self) -> Link | None:
        return self.links[-1] if self.links else None

    def whole(self) -> bool:
        """The records so far are the journal's beginning: no gap, no double, in order."""
        return [r.seq for r in self.records] == list(range(1, len(self.records) + 1))


@contextlib.asynccontextmanager
async def watching(run: RunDirectory, *, read_only: bool = False) -> AsyncIterator[Watcher]:
    watcher = Watcher(open_session(run, read_only))
    try:
        yield watcher
    finally:
        await watcher.session.close()
        watcher.task.cancel()
        with contextlib.suppress(asyncio.CancelledError, JournalReplaced):
            await watcher.task


async def test_a_late_joiner_gets_everything_and_then_the_news(runs: Path) -> None:
    engine = EngineDouble(make_run(runs))
    engine.start()
    engine.train(6000)
    async with watching(engine.run) as watcher:
        await eventually(lambda: watcher.link is Link.LIVE)
        while len(watcher.records) < 6002:
            engine.train(1)  # news arrive while history is being pulled
            await asyncio.sleep(0)
        await eventually(lambda: len(watcher.records) == engine.seq)
        assert watcher.whole()
        assert watcher.largest_delivery <= 2000
        assert len(watcher.progress) > 1
        assert watcher.links == [Link.CONNECTING, Link.LIVE]
        nan = next(r.event for r in watcher.records if r.step == 3)
        assert nan.loss != nan.loss  # type: ignore[union-attr]  # step 3 is a StepFinished


@pytest.mark.parametrize("kills", in_part([1, 3], [3]))
async def test_a_killed_hub_costs_neither_a_gap_nor_a_double(
    start_run: StartRun, kills: int
) -> None:
    run, _ = start_run("--step-s", "0.002")
    async with watching(run) as watcher:
        for _ in range(kills):
            await kill_and_recover(run, watcher)
        assert watcher.whole()


async def kill_and_recover(run: RunDirectory, watcher: Watcher) -> None:
    await eventually(lambda: watcher.link is Link.LIVE)
    before = len(watcher.records)
    kill_hub(run, signal.SIGKILL)
    await eventually(lambda: watcher.link is Link.LOST)
    await eventually(lambda: watcher.link is Link.LIVE)
    await eventually(lambda: len(watcher.records) > before + 100)


async def test_another_journal_in_the_same_place_is_not_mixed_in(runs: Path) -> None:
    engine = EngineDouble(make_run(runs))
    engine.start()
    engine.train(50)
    async with watching(engine.run) as watcher:
        await eventually(lambda: len(watcher.records) == 52)
        # As after a power loss: the newest records are gone, others take their numbers.
        kill_hub(engine.run, signal.SIGSTOP)
        payloads = journal_payloads(engine.run)[:30]
        engine.journal.close()
        engine.run.journal.unlink()
        again = FrameWriter(engine.run.journal, engine.run.journal_lock)
        again.append(*payloads)
        again.close()
        other = EngineDouble(engine.run)
        other.step = 1000
        other.train(60)
        kill_hub(engine.run, signal.SIGKILL)
        await asyncio.wait([watcher.task], timeout=30)
        assert watcher.whole()
        assert len(watcher.records) == 52
        with pytest.raises(
            JournalReplaced, match="record 52, the newest one shown, is no longer in"
        ):
            await watcher.task


async def test_a_command_sent_while_the_hub_is_dead_takes_effect_once(start_run: StartRun) -> None:
    run, _ = start_run()
    async with watching(run) as watcher:
        await eventually(lambda: watcher.link is Link.LIVE)
        kill_hub(run, signal.SIGKILL)
        id_ = watcher.session.submit(ScaleLr(factor=0.5), reason="try")
        await eventually(lambda: id_ in watcher.answers)
        assert watcher.answers[id_].accepted
        await eventually(lambda: applied(watcher, id_))
        assert len(applied(watcher, id_)) == 1
        assert len(list(FrameReader(run.control))) == 1


def applied(watcher: Watcher, id_: str) -> list[Record]:
    return [
        record
        for record in watcher.records
        if isinstance(record.event, CommandApplied) and record.event.id == id_
    ]


async def test_two_viewers_see_the_same_and_share_one_control(start_run: StartRun) -> None:
    run, _ = start_run()
    async with watching(run) as ann, watching(run) as bob:
        await eventually(lambda: ann.link is bob.link is Link.LIVE)
        first = ann.session.submit(Pause())
        await eventually(lambda: first in ann.answers)
        second = bob.session.submit(ScaleLr(factor=0.5))
        await eventually(lambda: second in bob.answers)
        assert not bob.answers[second].accepted
        assert ann.session.issuer in bob.answers[second].reason
        assert await bob.session.take_control() is None
        third = bob.session.submit(ScaleLr(factor=0.5))
        await eventually(lambda: third in bob.answers)
        assert bob.answers[third].accepted
        await eventually(lambda: ann.beat and ann.beat.controller_viewer == bob.session.viewer)
        await eventually(lambda: applied(ann, third) and applied(bob, third))
        await eventually(lambda: len(ann.records) == len(bob.records))
        assert encode_all(ann.records) == encode_all(bob.records)  # bytes: NaN equals nothing


def encode_all(records: list[Record]) -> list[bytes]:
    return [encode(record) for record in records]


async def test_control_survives_the_hub_and_ends_with_its_viewer(start_run: StartRun) -> None:
    run, _ = start_run()
    async with watching(run) as bob:
        async with watching(run) as ann:
            await eventually(lambda: ann.link is bob.link is Link.LIVE)
            assert await ann.session.take_control() is None
            held = lambda: bob.beat and bob.beat.controller_viewer == ann.session.viewer  # noqa: E731 -- used twice
            await eventually(lambda: ann.beat and ann.beat.controller_viewer)
            kill_hub(run, signal.SIGKILL)
            await eventually(lambda: Link.LOST in bob.links and bob.link is Link.LIVE)
            await eventually(held)
        await eventually(lambda: bob.beat and bob.beat.controller is None)


async def test_leaving_right_after_a_command_gives_control_up(start_run: StartRun) -> None:
    run, _ = start_run()
    async with watching(run) as bob:
        async with watching(run) as ann:
            await eventually(lambda: ann.link is bob.link is Link.LIVE)
            ann.session.submit(AddNote(text="bye"))
        id_ = bob.session.submit(Pause())
        await eventually(lambda: id_ in bob.answers)
        assert bob.answers[id_].accepted, bob.answers[id_].reason


async def test_a_read_only_viewer_is_refused_kindly(start_run: StartRun) -> None:
    run, _ = start_run()
    async with watching(run, read_only=True) as watcher:
        await eventually(lambda: watcher.link is Link.LIVE)
        id_ = watcher.session.submit(AddNote(text="x"))
        await eventually(lambda: id_ in watcher.answers)
        assert "read-only" in watcher.answers[id_].reason
        assert "read-only" in (await watcher.session.take_control() or "")


async def test_a_stopped_viewer_hurts_nobody_and_catches_up(start_run: StartRun) -> None:
    run, engine = start_run("--step-s", "0.0005")
    program = Path(__file__).parents[2] / "support" / "follower.py"
    other = subprocess.Popen(
        [sys.executable, str(program), str(run.path)], stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    try:
        assert other.stdout.readline() == "live\n"
        os.kill(other.pid, signal.SIGSTOP)
        async with watching(run) as watcher:
            await eventually(lambda: len(watcher.records) > 3000)
            assert watcher.whole()
            id_ = watcher.session.submit(Pause())
            await eventually(lambda: applied(watcher, id_))
        os.kill(other.pid, signal.SIGCONT)
        os.kill(engine.pid, signal.SIGINT)
        total, whole = (await asyncio.to_thread(other.stdout.readline)).split()
        assert whole == "True"
        assert int(total) == len(journal_payloads(run))
    finally:
        other.kill()
        other.wait()
        other.stdout.close()


async def test_the_end_of_a_run_is_seen_and_its_hub_may_go(start_run: StartRun) -> None:
    run, process = start_run("--steps", "20", idle_s=600)
    async with watching(run) as watcher:
        await eventually(lambda: watcher.beat and watcher.beat.state is RunState.FINISHED)
        await asyncio.to_thread(process.wait, 30)
        await eventually(
            lambda: watcher.records and isinstance(watcher.records[-1].event, RunEnded)
        )
        kill_hub(run, signal.SIGTERM)
        await asyncio.wait_for(watcher.task, 30)
        assert watcher.links[-1] is Link.ENDED
        assert watcher.whole()
        assert len(watcher.records) == len(journal_payloads(run))


async def test_commands_unanswered_at_the_end_are_looked_up_on_disk(start_run: StartRun) -> None:
    run, process = start_run()
    async with watching(run) as watcher:
        await eventually(lambda: watcher.link is Link.LIVE)
        process.kill()
        process.wait()
        kill_hub(run, signal.SIGKILL)
        id_ = watcher.session.submit(Pause())
        await asyncio.wait_for(watcher.task, 30)
        assert not watcher.answers[id_].accepted
        assert "ended before the command reached it" in watcher.answers[id_].reason
        assert watcher.beat is not None
        assert watcher.beat.state is RunState.LOST
        late = watcher.session.submit(Pause())
        await eventually(lambda: late in watcher.answers)
        assert not watcher.answers[late].accepted


async def test_silence_turns_stale_then_lost_and_comes_back(
    start_run: StartRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silence, "STALE_S", 1.5)
    monkeypatch.setattr(silence, "LOST_S", 3.0)
    run, _ = start_run()
    async with watching(run) as watcher:
        await eventually(lambda: watcher.link is Link.LIVE)
        kill_hub(run, signal.SIGSTOP)
        await eventually(lambda: watcher.link is Link.LOST)
        assert watcher.links[-2:] == [Link.STALE, Link.LOST]
        kill_hub(run, signal.SIGCONT)
        await eventually(lambda: watcher.link is Link.LIVE)
        await eventually(lambda: len(watcher.records) > 10)
        assert watcher.whole()


async def test_a_run_whose_hub_speaks_another_protocol_is_read_along(
    start_run: StartRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, engine = start_run()
    monkeypatch.setattr(hub_stream, "PROTOCOL_VERSION", (99, 0))
    async with watching(run) as watcher:
        await eventually(lambda: len(watcher.records) > 20)
        assert watcher.session.read_only
        id_ = watcher.session.submit(Pause())
        await eventually(lambda: id_ in watcher.answers)
        assert "99.0" in watcher.answers[id_].reason
        assert list(FrameReader(run.control)) == []
        engine.kill()
        engine.wait()
        await eventually(lambda: watcher.link is Link.ENDED)
        assert watcher.whole()
        assert [encode(r) for r in watcher.records] == journal_payloads(run)


async def test_a_script_is_refused_by_a_hub_of_another_major_version(
    start_run: StartRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = start_run()
    monkeypatch.setattr(hub_stream, "PROTOCOL_VERSION", (99, 0))
    session = LocalSession(run, one_shot=True)
    with pytest.raises(ProtocolMismatch, match=r"99\.0"):
        await asyncio.wait_for(session.listen(lambda _: None), 30)
    await session.close()


async def test_reports_come_over_the_wire(start_run: StartRun) -> None:
    run, _ = start_run()
    (run.reports / "r1.md").write_text("# r1")
    async with watching(run) as watcher:
        await eventually(lambda: watcher.link is Link.LIVE)
        assert await watcher.session.fetch_report("r1") == "# r1"
        with pytest.raises(FttuiError, match="no report 'r2'"):
            await watcher.session.fetch_report("r2")


async def test_a_dead_hub_of_a_living_engine_is_started_by_who_attaches(
    start_run: StartRun,
) -> None:
    run, _ = start_run("--no-hub")
    assert not hub_up(run)
    async with watching(run) as watcher:
        assert isinstance(watcher.session, LocalSession)
        await eventually(lambda: watcher.link is Link.LIVE)
        assert hub_up(run)


async def test_a_run_of_another_user_is_only_read(
    start_run: StartRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = start_run()
    monkeypatch.setattr(ownership, "current_user", lambda: os.geteuid() + 1)
    async with watching(run) as watcher:
        await eventually(lambda: watcher.link is Link.LIVE and len(watcher.records) > 5)
        assert watcher.whole()
        id_ = watcher.session.submit(Pause())
        await eventually(lambda: id_ in watcher.answers)
        assert not watcher.answers[id_].accepted
        assert "belongs to" in watcher.answers[id_].reason
    with pytest.raises(NotOwner):
        await LocalSession(run, one_shot=True).listen(lambda _: None)


async def test_a_dead_run_is_read_from_disk(runs: Path) -> None:
    engine = EngineDouble(make_run(runs))
    engine.start()
    engine.train(3000)
    engine.end(RunState.FAILED)
    engine.run.engine.unlink()
    (engine.run.reports / "r1.md").write_text("# r1")
    async with watching(engine.run) as watcher:
        assert isinstance(watcher.session, OfflineSession)
        await watcher.task
        assert len(watcher.records) == engine.seq
        assert watcher.whole()
        assert watcher.links == [Link.CONNECTING, Link.ENDED]
        assert watcher.beat is not None
        assert watcher.beat.state is RunState.FAILED
        id_ = watcher.session.submit(Pause())
        await eventually(lambda: id_ in watcher.answers)
        assert "--resume" in watcher.answers[id_].reason
        assert await watcher.session.take_control() is not None
        assert await watcher.session.fetch_report("r1") == "# r1"


async def test_a_moved_run_folder_is_told_with_what_to_do(start_run: StartRun) -> None:
    run, _ = start_run()
    watcher = Watcher(LocalSession(run))
    await eventually(lambda: Link.LIVE in watcher.links)
    run.path.rename(run.path.with_name("moved"))
    with pytest.raises(NoSuchRun, match=f"mv NEW_PLACE {run.path}"):
        await asyncio.wait_for(watcher.task, 30)
    run.path.with_name("moved").rename(run.path)


async def test_a_hub_that_comes_up_late_is_not_lost(runs: Path, monkeypatch) -> None:
    run = make_run(runs)
    EngineDouble(run).start()
    tries = iter([FttuiError("not yet"), FttuiError("not yet"), None])

    async def reach(_: RunDirectory) -> None:
        if (fault := next(tries)) is not None:
            raise fault

    monkeypatch.setattr(local, "reach_hub", reach)
    monkeypatch.setattr(local, "RETRY_S", 0.01)
    watcher = Watcher(LocalSession(run))
    await asyncio.wait_for(watcher.task, 30)
    assert watcher.links == [Link.CONNECTING, Link.ENDED]


async def test_leaving_leaves_the_run_going(start_run: StartRun) -> None:
    run, process = start_run()
    async with watching(run) as watcher:
        await eventually(lambda: watcher.records)
    count = len(journal_payloads(run))
    until(lambda: len(journal_payloads(run)) > count + 10)
    assert process.poll() is None


async def test_every_accepted_command_reaches_the_engine_once_and_in_order(
    start_run: StartRun,
) -> None:
    run, _ = start_run("--step-s", "0.005")
    async with watching(run) as watcher:
        await eventually(lambda: watcher.link is Link.LIVE)
        ids = []
        for index in range(60):
            ids.append(watcher.session.submit(AddNote(text=f"n{index}")))
            if index in (20, 40):
                kill_hub(run, signal.SIGKILL)
            await asyncio.sleep(0.01)
        await eventually(lambda: len(watcher.answers) == len(ids))
        assert all(watcher.answers[id_].accepted for id_ in ids)
        entries: list[ControlEntry] = ControlReader(run).take(10**9)
        assert sorted(e.id for e in entries) == sorted(ids)
        await eventually(lambda: all(applied(watcher, id_) for id_ in ids))
        outcomes = [r.event.id for r in watcher.records if isinstance(r.event, CommandApplied)]
        assert outcomes == [e.id for e in entries]
        endpoint = read_endpoint(run)
        assert endpoint is not None
