"""How the run of a watched script ends: what its journal says of commands, and of lost events."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from fttui.engine.config.schema import RunConfig
from fttui.engine.protocol.codec import decode_record
from fttui.engine.protocol.commands import parse_command
from fttui.engine.protocol.events import AnyEvent, CommandApplied, CommandFailed, RunEnded
from fttui.engine.protocol.states import RunState
from fttui.engine.run.control_log import ControlEntry, ControlWriter
from fttui.engine.run.journal import FrameReader
from fttui.engine.watch import script_run
from fttui.engine.watch.script_run import ScriptRun
from fttui.engine.watch.shield import Shield

CONFIG = msgspec.convert(
    {"name": "mine", "model": {"id": "m"}, "data": {"train": "d"}, "train": {"steps": 9}}, RunConfig
)


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptRun]:
    """A run of a script, with no hub of its own process."""
    monkeypatch.setenv("FTTUI_RUNS", str(tmp_path))
    monkeypatch.setattr(script_run, "launch_hub", lambda run: None)
    found = ScriptRun(CONFIG, "", "Trainer")
    yield found
    found.end(RunState.FAILED)


def journal(run: ScriptRun) -> list[AnyEvent]:
    records = [decode_record(payload) for payload in FrameReader(run.run.journal)]
    return [record.event for record in records if record is not None]


def test_an_error_of_fttui_ends_the_run_also_if_its_details_cannot_be_written(opened, capsys):
    shutil.rmtree(opened.run.logs)
    opened.run.logs.write_text("in the way")
    script_run.abandon(opened, ValueError("ours"))
    assert "training continues unwatched, its details cannot be written" in capsys.readouterr().err
    ended = journal(opened)[-1]
    assert isinstance(ended, RunEnded)
    assert (ended.state, "ours" in ended.error) == (RunState.FAILED, True)


def test_an_error_while_the_end_of_the_watching_is_recorded_stays_with_us(capsys) -> None:
    def refuse(error: Exception) -> None:
        raise OSError("no space left")

    shield = Shield(refuse)
    assert shield.call(lambda: 1 // 0, 7) == 7
    assert shield.broken
    assert "could not be recorded: OSError: no space left" in capsys.readouterr().err


def accept(run: ScriptRun, *texts: str) -> None:
    """Accept commands as a hub does that the trainer has not looked at."""
    writer = ControlWriter(run.run)
    for seq, text in enumerate(texts, 1):
        command = parse_command(text)
        writer.append(ControlEntry(seq=seq, time=0.0, id=f"c{seq}", command=command, issuer="me"))
    writer.close()


def test_every_accepted_command_has_one_outcome_before_the_end(opened: ScriptRun) -> None:
    accept(opened, "lr scale 0.5", "checkpoint")
    opened.event_log.record(CommandApplied(id="c1", command="lr scale 0.5", old="1", new="0.5"))
    opened.end(RunState.FINISHED)
    events = journal(opened)
    outcomes = [(e.id, type(e)) for e in events if isinstance(e, CommandApplied | CommandFailed)]
    assert outcomes == [("c1", CommandApplied), ("c2", CommandFailed)]
    (failed,) = [event for event in events if isinstance(event, CommandFailed)]
    assert failed.reason == "the run ended (finished)"
    assert isinstance(events[-1], RunEnded)
    assert events[-1].state is RunState.FINISHED


def test_a_success_whose_last_events_are_not_on_disk_is_unsaved(
    opened: ScriptRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[RunEnded] = []
    opened.event_log.listen(lambda e: ended.append(e) if isinstance(e, RunEnded) else None)
    settle = opened._writer.settle
    monkeypatch.setattr(opened._writer, "settle", lambda: settle() or "the disk is full")
    opened.end(RunState.FINISHED)
    assert [(end.state, end.exit_code, end.error) for end in ended] == [
        (RunState.UNSAVED, 13, "the disk is full")
    ]


def test_a_run_is_recorded_when_its_viewer_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    viewer = tmp_path / ".exec-1"
    viewer.mkdir()
    monkeypatch.setenv("FTTUI_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("FTTUI_EXEC", str(viewer))
    monkeypatch.setattr(script_run, "launch_hub", lambda run: None)
    announced = ScriptRun(CONFIG, "", "Trainer")
    assert (viewer / announced.run.id).read_text() == str(announced.run.path)
    shutil.rmtree(viewer)
    later = ScriptRun(CONFIG, "", "Trainer")
    for run in (announced, later):
        run.end(RunState.FINISHED)
        assert isinstance(journal(run)[-1], RunEnded)


def test_a_second_end_changes_nothing(opened: ScriptRun) -> None:
    opened.end(RunState.STOPPED)
    opened.end(RunState.FINISHED)
    (end,) = [event for event in journal(opened) if isinstance(event, RunEnded)]
    assert end.state is RunState.STOPPED
