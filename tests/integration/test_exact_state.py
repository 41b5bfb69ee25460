"""Whatever happens to a run on the way, its losses are those of the run nothing happened to.

Dropout, accumulation and shuffling are on; equality is to the last bit.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from fttui.engine.errors import CheckpointError
from fttui.engine.protocol.events import (
    CheckpointSaved,
    CommandApplied,
    CommandFailed,
    RolledBack,
    StateChanged,
    StepFinished,
)
from fttui.engine.protocol.states import RunState
from fttui.engine.train.loop.step_loop import StepLoop
from fttui.engine.train.trainers.pairs import PairTrainer
from tests.support.training import Played, Script, new_run, play


class Killed(Exception):
    """Stands for a process that dies."""


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """Trained without any incident."""
    return play(new_run(tmp_path_factory.mktemp("straight")))


def test_a_rollback_repeats_the_same_losses(straight: Played, tmp_path: Path) -> None:
    played = play(new_run(tmp_path), Script({6: ["rollback 4"]}))
    assert played.losses(timeline=2) == {
        step: loss for step, loss in straight.losses().items() if step > 4
    }
    assert [e.to_step for e in played.events(RolledBack)] == [4]


def test_a_stopped_and_resumed_run_equals_the_straight_one(
    straight: Played, tmp_path: Path
) -> None:
    run = new_run(tmp_path)
    first = play(run, Script({3: ["stop"]}))
    assert first.outcome.state is RunState.STOPPED
    second = play(run, resume="last")
    assert second.outcome.state is RunState.FINISHED
    assert second.losses() == straight.losses()
    assert not second.events(RolledBack)
    assert [r.seq for r in second.records] == list(range(1, len(second.records) + 1))


def test_a_killed_and_restarted_run_repeats_the_lost_steps(
    straight: Played, tmp_path: Path
) -> None:
    def die() -> None:
        raise Killed

    run = new_run(tmp_path)
    with pytest.raises(Killed):
        play(run, Script(calls={6: die}))
    again = play(run, resume="last")
    expected = straight.losses()
    assert again.losses(timeline=1) == {s: v for s, v in expected.items() if s <= 6}
    assert again.losses(timeline=2) == {s: v for s, v in expected.items() if s > 4}


def test_a_pause_within_a_step_drops_and_repeats_it(
    straight: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    fetch = StepLoop.fetch

    def fetch_then_pause(self: Any, micro_batches: int) -> Any:
        batches = fetch(self, micro_batches)
        if self._control.position.step == 4 and not sent:
            sent.append(4)
            self._conclusion._event_log.send("pause")
        return batches

    monkeypatch.setattr(StepLoop, "fetch", fetch_then_pause)
    script = Script(states={RunState.PAUSED: ["eval", "checkpoint", "lr scale 1", "resume"]})
    played = play(new_run(tmp_path), script)
    assert played.losses() == straight.losses()
    assert _entered(played, RunState.PAUSED)[0] == 4
    assert len(played.events(CommandApplied)) == 5


def _entered(played: Played, state: RunState) -> list[int]:
    """The steps at which a state was entered."""
    return [step for step, event in played.at(StateChanged) if event.state is state]


def test_settings_survive_checkpoint_rollback_and_resume(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    script = Script({2: ["lr scale 0.25", "clip 0.5"], 6: ["rollback 4 skip=1"], 7: ["stop"]})
    first = play(run, script)
    second = play(run, resume="last")
    used = [event for step, event in second.at(StepFinished) if step > 2]
    assert {event.lr_scale for event in used} == {0.25}
    assert {event.clip for event in used} == {0.5}
    assert all(math.isclose(event.lr, event.lr_schedule * 0.25) for event in used)
    assert first.losses(timeline=2)[5] != first.losses(timeline=1)[5], "one batch was skipped"


def test_a_learning_rate_changed_for_a_resumed_run_counts(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    play(run, Script({4: ["stop"]}))
    run.config.write_text(run.config.read_text().replace("lr: 0.01", "lr: 0.001"))
    used = {step: event.lr for step, event in play(run, resume="last").at(StepFinished)}
    assert math.isclose(used[5], used[4] / 10 * 4 / 5)


def test_commands_take_effect_in_the_order_they_were_accepted(tmp_path: Path) -> None:
    played = play(new_run(tmp_path), Script({5: ["rollback 4 lr=0.5", "lr scale 0.8"]}))
    applied = [e.command for e in played.events(CommandApplied)]
    assert applied == ["rollback 4 lr=0.5", "lr scale 0.8"]
    last = played.events(StepFinished)[-1]
    assert last.lr_scale == 0.8


def test_run_n_pauses_after_n_steps(tmp_path: Path) -> None:
    script = Script({2: ["run 3"]}, states={RunState.PAUSED: ["resume"]})
    played = play(new_run(tmp_path), script)
    assert _entered(played, RunState.PAUSED) == [5]


def test_an_unknown_checkpoint_fails_the_command_and_training_goes_on(
    straight: Played, tmp_path: Path
) -> None:
    played = play(new_run(tmp_path), Script({3: ["rollback 77"]}))
    (failed,) = played.events(CommandFailed)
    assert "no complete checkpoint '77'" in failed.reason
    assert played.losses() == straight.losses()


def test_a_damaged_checkpoint_is_refused_by_name(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    play(run, Script({5: ["stop"]}))
    victim = run.checkpoints / "step-000004" / "adapter_model.safetensors"
    data = bytearray(victim.read_bytes())
    data[-1] ^= 1
    victim.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"step-000004: adapter_model.safetensors is damaged"):
        play(run, resume="4")


def test_a_nan_never_reaches_the_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _poison(monkeypatch, step=5)
    run = new_run(tmp_path, checkpoint__every=1)
    played = play(run, Script())
    skipped = [(step, event) for step, event in played.at(StepFinished) if event.skipped]
    assert [step for step, _ in skipped] == [6]
    assert math.isnan(skipped[0][1].loss_or_nan)
    before = load_file(run.checkpoints / "step-000005" / "adapter_model.safetensors")
    after = load_file(run.checkpoints / "step-000006" / "adapter_model.safetensors")
    assert all((before[name] == after[name]).all() for name in before)
    assert played.outcome.state is RunState.FINISHED


def test_the_rollback_policy_goes_back_past_the_bad_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _poison(monkeypatch, step=5)
    played = play(new_run(tmp_path, guard__nonfinite="rollback"))
    (back,) = played.events(RolledBack)
    assert (back.from_step, back.to_step, back.skipped_batches) == (6, 4, 2)
    assert played.outcome.state is RunState.FINISHED


def test_the_halt_policy_waits_for_a_person(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _poison(monkeypatch, step=5)
    script = Script(states={RunState.HALTED: ["rollback 4 lr=0.5"]})
    played = play(new_run(tmp_path, guard__nonfinite="halt"), script)
    assert _entered(played, RunState.HALTED)
    assert played.outcome.state is RunState.FINISHED
    assert played.events(StepFinished)[-1].lr_scale == 0.5


def _poison(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Make the loss of one step NaN, the first time it is trained."""
    compute_loss = PairTrainer.compute_loss
    hit: list[int] = []

    def poisoned(self: PairTrainer, *args: Any, **kwargs: Any) -> Any:
        loss = compute_loss(self, *args, **kwargs)
        if self.state.global_step == step and len(hit) < 2:
            hit.append(step)
            return loss * float("nan")
        return loss

    monkeypatch.setattr(PairTrainer, "compute_loss", poisoned)


def test_a_full_disk_rejects_the_checkpoint_and_training_goes_on(
    straight: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fttui.engine.train.checkpoint.checkpointer.free_bytes", lambda folder: 10)
    run = new_run(tmp_path, checkpoint__every=0)
    played = play(run, Script({3: ["checkpoint"]}))
    (failed,) = played.events(CommandFailed)
    assert "free some disk space" in failed.reason
    assert played.losses() == straight.losses()
    assert [e.name for e in played.events(CheckpointSaved)] == ["step-000000"]
