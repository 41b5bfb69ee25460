"""A stop asked for while the engine imports or loads ends it, whatever it is doing."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fttui.engine.__main__ as engine_main
from fttui.engine.errors import FttuiError
from fttui.engine.protocol.commands import AnyCommand, Pause, Stop
from fttui.engine.protocol.events import AnyEvent, CommandAccepted, CommandFailed, RunEnded
from fttui.engine.protocol.states import RunState
from fttui.engine.run.control_log import ControlEntry, ControlWriter
from fttui.engine.run.journal_summary import summarize_journal
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.train.control.early_stop import (
    EarlyStop,
    StoppedEarly,
    WaitingStop,
)
from fttui.engine.train.control.stop_notice import StopNotice
from fttui.engine.train.control.unanswered import UnansweredCommands
from fttui.engine.train.event_log import EventLog
from fttui.engine.train.session_start import SessionStart
from fttui.engine.train.signals import StopSignals
from tests.support.engine_double import step_event

PATIENCE_S = 20.0


@pytest.fixture
def signals() -> Iterator[StopSignals]:
    before = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    made = StopSignals(launched=False)
    made.install()
    yield made
    for number, handler in before.items():
        signal.signal(number, handler)


def load(seconds: float = PATIENCE_S) -> None:
    """Load in Python code that never speaks about it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.01)


def test_a_signal_interrupts_loading_at_once(signals: StopSignals) -> None:
    early = EarlyStop(EventLog(None), signals, lambda: False, lambda: None)
    early.begin()
    started = time.monotonic()
    with pytest.raises(StoppedEarly):
        signal.raise_signal(signal.SIGTERM)
    early.end()
    assert time.monotonic() - started < PATIENCE_S / 2


def test_a_signal_that_came_before_counts(signals: StopSignals) -> None:
    signals.count = 1
    early = EarlyStop(EventLog(None), signals, lambda: False, lambda: None)
    with pytest.raises(StoppedEarly):
        early.begin()
    early.end()


def test_a_signal_while_the_watch_begins_ends_it_properly(
    signals: StopSignals, monkeypatch: pytest.MonkeyPatch
) -> None:
    early = EarlyStop(EventLog(None), signals, lambda: False, lambda: None)
    start = early._thread.start

    def interrupted() -> None:
        signal.raise_signal(signal.SIGTERM)
        start()

    monkeypatch.setattr(early._thread, "start", interrupted)
    with pytest.raises(StoppedEarly):
        early.begin()
    early.end()


def test_a_signal_while_an_error_of_loading_is_reported_changes_nothing(
    signals: StopSignals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise FttuiError("no such model")

    failed = engine_main._failed

    def interrupted(*given: Any) -> RunEnded:
        signal.raise_signal(signal.SIGTERM)
        return failed(*given)

    monkeypatch.setattr(engine_main, "_train", fails)
    monkeypatch.setattr(engine_main, "_failed", interrupted)
    event_log = EventLog(None)
    start = SessionStart(RunDirectory(tmp_path), summarize_journal(()))
    unanswered = UnansweredCommands(frozenset(), event_log.record)
    ended, early = engine_main._guarded(start, event_log, signals, unanswered)
    assert not early
    assert (ended.state, ended.error) == (RunState.FAILED, "no such model")


def test_a_stop_command_interrupts_loading_too(signals: StopSignals) -> None:
    early = EarlyStop(EventLog(None), signals, lambda: True, lambda: None)
    early.begin()
    with pytest.raises(StoppedEarly):
        load()
    early.end()
    assert signals.count == 0


def test_a_library_that_swallows_the_interruption_gets_another(signals: StopSignals) -> None:
    early = EarlyStop(EventLog(None), signals, lambda: True, lambda: None)
    early.begin()
    for _ in range(2):
        with pytest.raises(StoppedEarly):
            load()
    early.end()


def test_a_run_that_trains_stops_at_a_boundary(signals: StopSignals) -> None:
    event_log = EventLog(None)
    event_log.state = RunState.RUNNING
    early = EarlyStop(event_log, signals, lambda: False, lambda: None)
    early.begin()
    signal.raise_signal(signal.SIGTERM)
    load(0.4)
    early.end()
    assert signals.count == 1


def notices(tmp_path: Path, **changed: str) -> list[StopNotice]:
    """Those of two ranks, the second with a changed environment."""
    start = {"WORLD_SIZE": "2", "TORCHELASTIC_RESTART_COUNT": "0", "MASTER_PORT": "4711"}
    found = [StopNotice.of(RunDirectory(tmp_path), e) for e in (start, start | changed)]
    return [notice for notice in found if notice is not None]


@pytest.mark.parametrize("by_signal", [True, False])
def test_one_rank_that_is_asked_to_stop_interrupts_the_loading_of_all(
    signals: StopSignals, tmp_path: Path, by_signal: bool
) -> None:
    mine, other = notices(tmp_path, RANK="1")
    early = EarlyStop(EventLog(None), signals, lambda: False, lambda: None, mine)
    early.begin()
    other.give(by_signal=by_signal)
    with pytest.raises(StoppedEarly):
        load()
    early.end()
    assert (signals.count, early.by_signal) == (0, by_signal)


def test_a_signal_that_is_merged_with_the_interruption_of_the_watch_still_counts(
    signals: StopSignals,
) -> None:
    early = EarlyStop(EventLog(None), signals, lambda: False, lambda: None)
    early.begin()

    def arrives() -> None:
        os.write(early._waker, bytes([signal.SIGTERM]))  # by the kernel, before the handler runs
        load()

    with pytest.raises(StoppedEarly):
        arrives()
    early.end()
    assert (signals.count, early.by_signal) == (0, True)


def test_a_loading_rank_that_is_asked_to_stop_tells_the_others(
    signals: StopSignals, tmp_path: Path
) -> None:
    mine, other = notices(tmp_path)
    early = EarlyStop(EventLog(None), signals, lambda: True, lambda: None, mine)
    early.begin()
    with pytest.raises(StoppedEarly):
        load()
    early.end()
    early.tell_others()
    assert other.given()
    assert not other.by_signal()


@pytest.mark.parametrize(
    "changed", [{"TORCHELASTIC_RESTART_COUNT": "1"}, {"MASTER_PORT": "1"}, {"WORLD_SIZE": "1"}]
)
def test_a_notice_counts_for_the_ranks_of_one_start(
    tmp_path: Path, changed: dict[str, str]
) -> None:
    earlier, *later = notices(tmp_path, **changed)
    earlier.give(by_signal=True)
    assert not any(notice.given() or notice.by_signal() for notice in later)


@pytest.mark.parametrize("made", ["symlink", "fifo", "folder", "nonsense", "missing"])
def test_what_no_rank_has_written_is_no_notice(tmp_path: Path, made: str) -> None:
    notice, _ = notices(tmp_path)
    file = RunDirectory(tmp_path).stop_notice
    match made:
        case "symlink":
            notice.give(by_signal=True)
            file.rename(tmp_path / "target")
            file.symlink_to(tmp_path / "target")
        case "fifo":
            os.mkfifo(file)
        case "folder":
            file.mkdir()
        case "nonsense":
            file.write_bytes(b"\xff" * 4096)
    assert not notice.given()


def test_a_rank_without_a_folder_leaves_nevertheless(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    notice, _ = notices(tmp_path / "removed")
    notice.give(by_signal=True)
    assert not notice.given()
    assert "cannot be informed" in caplog.text


@pytest.mark.parametrize(("trained", "state"), [(False, "stopped"), (True, "failed")])
def test_an_error_because_another_rank_left_for_a_stop_is_a_stop(
    signals: StopSignals,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    trained: bool,
    state: str,
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    event_log = EventLog(None)

    def fails(start: SessionStart, *_: object) -> None:
        event_log.state = RunState.RUNNING  # it waits at the first boundary for the other one
        if trained:
            event_log.record(step_event(1))
        notice = StopNotice.of(start.run, os.environ)
        assert notice
        notice.give(by_signal=True)
        raise RuntimeError("Connection closed by peer")

    monkeypatch.setattr(engine_main, "_train", fails)
    start = SessionStart(RunDirectory(tmp_path), summarize_journal(()), stopped_code=143)
    unanswered = UnansweredCommands(frozenset(), event_log.record)
    ended, early = engine_main._guarded(start, event_log, signals, unanswered)
    assert (ended.state.value, early) == (state, not trained)
    assert trained or ended.exit_code == 143


def test_code_that_never_returns_is_left(signals: StopSignals) -> None:
    left: list[float] = []
    early = EarlyStop(
        EventLog(None), signals, lambda: False, lambda: left.append(time.monotonic()), stuck_s=0.2
    )
    early.begin()
    # No handler of Python runs in a blocked thread, as in a library that does not return.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        os.write(early._waker, bytes([signal.SIGTERM]))  # as the kernel does for a handler
        end = time.monotonic() + PATIENCE_S
        while not left and time.monotonic() < end:
            time.sleep(0.01)
        assert left
    finally:
        signals._poked = True
        signals.on_receipt(None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    early.end()


def entry(seq: int, command: AnyCommand) -> ControlEntry:
    return ControlEntry(seq=seq, time=1.0, id=f"c{seq}", command=command, issuer="ann")


def test_only_a_stop_since_the_start_counts(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    control = ControlWriter(run)
    control.append(entry(1, Stop()))
    waits = WaitingStop(run, 1)
    assert not waits()
    control.append(entry(2, Pause()))
    assert not waits()
    control.append(entry(3, Stop()))
    assert waits()
    assert waits(), "it is remembered"
    control.close()


def test_every_command_gets_one_outcome() -> None:
    commands: list[AnyCommand] = [Stop(), Pause(), Stop(), Pause()]
    entries = [entry(seq, command) for seq, command in enumerate(commands, start=1)]
    told: list[AnyEvent] = []
    unanswered = UnansweredCommands({"c1"}, told.append)
    unanswered.observe(CommandAccepted(id="c2", command="pause", issuer="ann"))
    unanswered.observe(CommandFailed(id="c4", command="pause", reason="no"))
    unanswered.conclude(entries, "the run ended", "stopped while loading")
    outcomes = [(getattr(e, "id", ""), type(e).__name__) for e in told]
    assert outcomes == [
        ("c2", "CommandFailed"),
        ("c3", "CommandAccepted"),
        ("c3", "CommandApplied"),
    ]
