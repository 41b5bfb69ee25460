"""Control, exact state and monitoring around a training loop in plain PyTorch."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch

from fttui.engine.protocol.events import (
    CheckpointSaved,
    CommandApplied,
    CommandFailed,
    EvalFinished,
    StateChanged,
    StepFinished,
)
from fttui.engine.protocol.states import RunState
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.train.position import Position
from tests.support.plain_loop import STEPS, PlainLoop, Poisoned, play_plain
from tests.support.training import Script, new_run


def plain_run(folder: Path) -> RunDirectory:
    """A run folder of its own, with a checkpoint at the start."""
    folder.mkdir(exist_ok=True)
    return new_run(folder, "sft", checkpoint__every=0, checkpoint__at_start="true")


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return plain_run(tmp_path)


def test_settings_take_effect_at_the_next_update(run: RunDirectory) -> None:
    played, _ = play_plain(run, Script({2: ["lr scale 0.5", "clip 0.01"]}))
    steps = played.events(StepFinished)
    assert [step.lr_scale for step in steps] == [1.0] * 2 + [0.5] * 6
    assert [step.clip for step in steps] == [1.0] * 2 + [0.01] * 6
    assert all(step.clipped for step in steps[2:])
    assert [step.lr for step in steps[:2]] == [0.1, pytest.approx(0.1 * 0.99)]
    assert steps[2].lr == pytest.approx(0.1 * 0.98 * 0.5)


def test_a_rollback_repeats_the_losses_bit_for_bit(run: RunDirectory) -> None:
    played, _ = play_plain(run, Script({3: ["checkpoint"], 6: ["rollback 3"]}))
    first, again = played.losses(timeline=1), played.losses(timeline=2)
    assert sorted(again) == list(range(4, STEPS + 1))
    assert [again[n] for n in (4, 5, 6)] == [first[n] for n in (4, 5, 6)]


def test_a_resumed_run_continues_bit_for_bit(tmp_path: Path) -> None:
    straight, _ = play_plain(plain_run(tmp_path / "straight"))
    run = plain_run(tmp_path / "resumed")
    stopped, _ = play_plain(run, Script({4: ["stop"]}))
    assert stopped.outcome.state is RunState.STOPPED
    resumed, loop = play_plain(run, resume="last")
    assert resumed.losses() == straight.losses()
    assert loop.position.step == STEPS


def test_a_pause_holds_the_loop_and_a_dropped_step_is_repeated(
    run: RunDirectory, tmp_path: Path
) -> None:
    straight, _ = play_plain(plain_run(tmp_path / "straight"))
    script = Script({2: ["pause"]}, states={RunState.PAUSED: ["resume"]})
    played, _ = play_plain(run, script)
    states = [event.state for event in played.events(StateChanged)]
    assert states.count(RunState.PAUSED) == 1
    assert played.losses() == straight.losses()


def test_a_loss_that_is_not_finite_changes_no_weight(run: RunDirectory) -> None:
    played, loop = play_plain(run, make=partial(Poisoned, step=STEPS))
    last = played.events(StepFinished)[-1]
    assert last.skipped
    assert all(torch.isfinite(weight).all() for weight in loop.model.parameters())


def test_a_command_that_the_trainer_does_not_obey_is_refused(run: RunDirectory) -> None:
    played, _ = play_plain(run, Script({2: ["sample hello", "eval", "note kept"]}))
    (refused,) = played.events(CommandFailed)
    assert refused.command == "sample hello"
    assert refused.reason == "not possible in this run: it has no tokenizer"
    assert [done.command for done in played.events(CommandApplied)] == ["eval", "note kept"]
    assert played.events(EvalFinished)
    assert played.events(CheckpointSaved)


def test_a_trainer_without_a_profiler_refuses_a_profile(run: RunDirectory) -> None:
    played, _ = play_plain(run, Script({2: ["profile 2"]}))
    (refused,) = played.events(CommandFailed)
    assert refused.reason == "the trainer of this run cannot be profiled"
    assert len(played.losses()) == STEPS


def test_a_trainer_that_moves_a_position_of_its_own_is_refused(run: RunDirectory) -> None:
    with pytest.raises(ValueError, match="must share the same Position"):
        play_plain(run, make=lambda _: PlainLoop(Position()))
