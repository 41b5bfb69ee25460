"""The end of a run is recorded, whatever happens to the files of its commands."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from fttui.engine.protocol.codec import decode_record
from fttui.engine.protocol.commands import Pause
from fttui.engine.protocol.events import AnyEvent, CommandFailed, RunEnded
from fttui.engine.protocol.states import RunState
from fttui.engine.run.control_log import ControlEntry, ControlWriter
from fttui.engine.run.journal import FrameReader
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.train.control.run_end import accepted_since, end_run
from fttui.engine.train.control.unanswered import UnansweredCommands
from fttui.engine.train.event_log import EventLog
from fttui.engine.train.journal_writer import JournalWriter
from tests.support.engine_double import make_run

FINISHED = RunEnded(state=RunState.FINISHED, exit_code=0)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    made = make_run(tmp_path)
    control = ControlWriter(made)
    control.append(ControlEntry(seq=1, time=1.0, id="c1", command=Pause(), issuer="ann"))
    control.close()
    return made


def ended(run: RunDirectory) -> tuple[RunEnded, list[AnyEvent]]:
    """End the run; return the end, and the events in the journal."""
    writer = JournalWriter(run, lambda _: None, in_thread=False)
    event_log = EventLog(writer)
    unanswered = UnansweredCommands(frozenset(), event_log.record)

    def conclude(_: RunEnded) -> None:
        unanswered.conclude(accepted_since(run, 0), "the run ended")

    found = end_run(run, writer, FINISHED, event_log.record, conclude)
    records = [decode_record(payload) for payload in FrameReader(run.journal)]
    return found, [record.event for record in records if record is not None]


def _no_lock(run: RunDirectory) -> None:
    (run.path / "control.gate").mkdir()


def _no_doorbell(run: RunDirectory) -> None:
    run.doorbell.unlink()
    run.doorbell.mkdir()


def _no_journal(run: RunDirectory) -> None:
    run.control.unlink()
    run.control.mkdir()


@pytest.mark.parametrize("lose", [_no_lock, _no_doorbell])
def test_without_lock_or_doorbell_the_end_and_the_outcomes_are_recorded(
    run: RunDirectory, lose: Callable[[RunDirectory], None]
) -> None:
    lose(run)
    found, events = ended(run)
    assert found == FINISHED
    assert events[-1] == FINISHED
    assert [event.id for event in events if isinstance(event, CommandFailed)] == ["c1"]


def test_the_end_is_recorded_when_commands_cannot_be_read(run: RunDirectory) -> None:
    _no_journal(run)
    found, events = ended(run)
    assert found == FINISHED
    assert events[-1] == FINISHED


def test_commands_that_cannot_be_read_are_reported(
    run: RunDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    _no_journal(run)
    with caplog.at_level(logging.ERROR):
        assert accepted_since(run, 0) == []
    assert "have no outcome" in caplog.text
