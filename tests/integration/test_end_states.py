"""`finished` and `stopped` mean that the last state is on disk; anything else has its own state."""

from __future__ import annotations

from pathlib import Path

import pytest

from fttui.engine.protocol.events import CommandApplied
from fttui.engine.protocol.states import RunState
from fttui.engine.run.checkpoint_store import CheckpointStore
from fttui.engine.train.checkpoint.training_state import TrainingState
from tests.support.training import Script, new_run, play


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(TrainingState, "save_shared", full)


def test_a_run_whose_last_state_is_on_disk_is_finished(tmp_path: Path) -> None:
    played = play(new_run(tmp_path))
    assert (played.outcome.state, played.outcome.unsaved) == (RunState.FINISHED, "")
    assert CheckpointStore(played.run).all()[-1].name == played.outcome.checkpoint


@pytest.mark.usefixtures("full_disk")
def test_a_run_that_cannot_save_its_last_state_is_not_finished(tmp_path: Path) -> None:
    played = play(new_run(tmp_path))
    assert played.outcome.state is RunState.UNSAVED
    assert "No space left" in played.outcome.unsaved
    assert CheckpointStore(played.run).all() == []


@pytest.mark.usefixtures("full_disk")
def test_a_stop_is_obeyed_although_nothing_can_be_saved(tmp_path: Path) -> None:
    played = play(new_run(tmp_path), Script(commands={3: ["stop"]}))
    assert played.outcome.state is RunState.UNSAVED
    (stopped,) = [e for e in played.events(CommandApplied) if e.command == "stop"]
    assert "not saved: checkpoint not written" in stopped.new


@pytest.mark.usefixtures("full_disk")
def test_a_stop_that_was_to_save_nothing_is_a_stop(tmp_path: Path) -> None:
    played = play(new_run(tmp_path), Script(commands={3: ["stop no-save"]}))
    assert (played.outcome.state, played.outcome.unsaved) == (RunState.STOPPED, "")
