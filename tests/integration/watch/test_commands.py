"""Commands of a watched trainer, what the user keeps, and errors of fttui itself."""

from __future__ import annotations

import gc
import math
import signal
import weakref
from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from fttui.engine.protocol.events import (
    CheckpointSaved,
    CommandApplied,
    CommandFailed,
    EvalFinished,
    LogEmitted,
    RolledBack,
    RunEnded,
    RunStarted,
    SampleGenerated,
    StateChanged,
    StepFinished,
)
from fttui.engine.protocol.states import RunState
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.train.loop import step_loop
from fttui.engine.watch import batch_tape, script_run
from fttui.engine.watch.checkpoint_plan import plan_checkpoints
from fttui.engine.watch.huggingface.arguments import watched_config
from fttui.engine.watch.huggingface.watch import unwatch_trainer, watch_trainer
from fttui.engine.watch.watch_options import WatchOptions
from tests.support.foreign import Trained, build, plain, play_watched, sft, train_alone, weights_of
from tests.support.matrix import in_part
from tests.support.training import Script, read_records

Patch = pytest.MonkeyPatch
HALVED_AFTER = 5


def two_epochs(folder: Path) -> Any:
    return plain(folder, num_train_epochs=2)


def three_epochs(folder: Path) -> Any:
    return plain(folder, num_train_epochs=3)


def halved_by_the_script(folder: Path) -> Any:
    """The same trainer with a schedule that is really halved after a step."""
    trainer = two_epochs(folder)
    make = trainer.create_scheduler

    def create_scheduler(*args: Any, **kwargs: Any) -> Any:
        schedule = make(*args, **kwargs)
        factors = [
            lambda step, own=own: own(step) * (0.5 if step >= HALVED_AFTER else 1.0)
            for own in schedule.lr_lambdas
        ]
        schedule.lr_lambdas = factors
        return schedule

    trainer.create_scheduler = create_scheduler
    return trainer


def poisoned(folder: Path, step: int) -> Any:
    """The same trainer with a loss of NaN in one step."""
    trainer = two_epochs(folder)
    compute = trainer.compute_loss

    def compute_loss(*args: Any, **kwargs: Any) -> Any:
        loss = compute(*args, **kwargs)
        return loss * math.nan if trainer.state.global_step + 1 == step else loss

    trainer.compute_loss = compute_loss
    return trainer


def run_of(trained: Trained) -> Any:
    assert trained.played is not None
    return trained.played


def test_a_watched_run_without_commands_is_the_same_run(tmp_path: Path, monkeypatch: Patch) -> None:
    alone = train_alone(two_epochs, tmp_path / "alone")
    watched = play_watched(two_epochs, tmp_path / "watched", monkeypatch)
    assert torch.equal(watched.weights, alone.weights)
    assert watched.logged == alone.logged
    steps = run_of(watched).events(StepFinished)
    assert [step.loss for step in steps] == [
        pytest.approx(entry["loss"]) for entry in alone.logged if "loss" in entry
    ]
    assert steps[-1].epoch == 2.0
    assert [step.samples for step in steps] == [4, 4, 4, 4, 4, 2] * 2
    assert steps[0].tokens == 4 * 12
    kept = [step.extra["batches_kept_mib"] for step in steps]
    assert kept == sorted(kept)
    assert 0 < kept[0] < kept[-1] < 1


def test_a_scaled_learning_rate_is_that_of_a_scaled_schedule(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    wanted = train_alone(halved_by_the_script, tmp_path / "alone")
    script = Script({HALVED_AFTER: ["lr scale 0.5"]})
    watched = play_watched(two_epochs, tmp_path / "watched", monkeypatch, script)
    assert torch.equal(watched.weights, wanted.weights)
    steps = run_of(watched).events(StepFinished)
    assert [step.lr_scale for step in steps] == [1.0] * 5 + [0.5] * 7


def test_a_clip_takes_effect_with_the_next_update(tmp_path: Path, monkeypatch: Patch) -> None:
    watched = play_watched(two_epochs, tmp_path, monkeypatch, Script({3: ["clip 0.01"]}))
    steps = run_of(watched).events(StepFinished)
    assert [step.clip for step in steps] == [1.0] * 3 + [0.01] * 9
    assert all(step.clipped for step in steps[3:])
    assert watched.trainer.args.max_grad_norm == 1.0


def test_a_trainer_that_does_not_clip_can_be_clipped(tmp_path: Path, monkeypatch: Patch) -> None:
    def unclipped(folder: Path) -> Any:
        return plain(folder, num_train_epochs=1, max_grad_norm=0.0)

    alone = train_alone(unclipped, tmp_path / "alone")
    same = play_watched(unclipped, tmp_path / "same", monkeypatch)
    assert torch.equal(same.weights, alone.weights)
    watched = play_watched(unclipped, tmp_path / "clipped", monkeypatch, Script({2: ["clip 0.01"]}))
    assert [step.clip for step in run_of(watched).events(StepFinished)] == [None] * 2 + [0.01] * 4
    assert not torch.equal(watched.weights, alone.weights)


def test_a_pause_between_two_micro_batches_changes_no_number(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    alone = train_alone(two_epochs, tmp_path / "alone")
    script = Script({}, states={RunState.PAUSED: ["resume"]})

    def paused_inside(folder: Path) -> Any:
        trainer = two_epochs(folder)
        compute = trainer.compute_loss
        sent: list[str] = []

        def compute_loss(*args: Any, **kwargs: Any) -> Any:
            if trainer.state.global_step == 4 and not sent:
                sent.append("pause")
                script.senders[-1]("pause")
            return compute(*args, **kwargs)

        trainer.compute_loss = compute_loss
        return trainer

    watched = play_watched(paused_inside, tmp_path / "watched", monkeypatch, script)
    states = [event.state for event in run_of(watched).events(StateChanged)]
    assert states.count(RunState.PAUSED) == 1
    assert torch.equal(watched.weights, alone.weights)
    assert watched.logged == alone.logged


def test_an_evaluation_and_a_sample_change_no_number(tmp_path: Path, monkeypatch: Patch) -> None:
    def short(folder: Path) -> Any:
        return sft(folder, num_train_epochs=1)

    alone = train_alone(short, tmp_path / "alone")
    script = Script({2: ["eval", "sample w1 w2", "note kept"]})
    watched = play_watched(short, tmp_path / "watched", monkeypatch, script)
    played = run_of(watched)
    assert played.events(CommandFailed) == []
    (evaluated,) = played.events(EvalFinished)
    assert 2 < evaluated.metrics["loss"] < 6
    assert "runtime" not in evaluated.metrics
    assert played.events(SampleGenerated)
    logged = played.events(StepFinished)[-1].extra
    assert 0 < logged["mean_token_accuracy"] < 1
    assert torch.equal(watched.weights, alone.weights)


def test_evaluations_of_the_script_are_recorded(tmp_path: Path, monkeypatch: Patch) -> None:
    def evaluating(folder: Path) -> Any:
        return plain(folder, num_train_epochs=1, eval_strategy="steps", eval_steps=3)

    played = run_of(play_watched(evaluating, tmp_path, monkeypatch))
    assert [step for step, _ in played.at(EvalFinished)] == [3, 6]


def test_what_the_script_has_set_up_stays_its_own(tmp_path: Path, monkeypatch: Patch) -> None:
    """Its metrics, its handlers of signals, and the optimizer and schedule that it has made."""
    seen: list[Any] = []

    def measuring(folder: Path) -> Any:
        trainer = plain(folder, num_train_epochs=1, eval_strategy="steps", eval_steps=3)
        optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.1, momentum=0.9)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        trainer.optimizer, trainer.lr_scheduler = optimizer, schedule

        def compute_metrics(predicted: Any) -> dict[str, float]:
            seen.append([signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)])
            return {"highest": float(predicted.predictions.max())}

        trainer.compute_metrics = compute_metrics
        return trainer

    def own(number: int, frame: Any) -> None:
        """Stand for a handler of the script."""

    before = signal.signal(signal.SIGTERM, own)
    try:
        alone = train_alone(measuring, tmp_path / "alone")
        watched = play_watched(measuring, tmp_path / "watched", monkeypatch)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert len(seen) == 4
    assert seen == [seen[0]] * 4
    assert seen[0][1] is own
    assert torch.equal(watched.weights, alone.weights)
    assert watched.logged == alone.logged
    evaluated = run_of(watched).events(EvalFinished)
    highest = [entry["eval_highest"] for entry in alone.logged if "eval_highest" in entry]
    assert [event.metrics["highest"] for event in evaluated] == highest


def test_another_pass_makes_up_for_skipped_data(tmp_path: Path, monkeypatch: Patch) -> None:
    watched = play_watched(two_epochs, tmp_path, monkeypatch, Script({2: ["skip 3"]}))
    steps = run_of(watched).at(StepFinished)
    assert [number for number, _ in steps] == list(range(1, 13))
    assert [step.epoch for number, step in steps if number in (3, 9)] == [1.0, 2.0]
    assert steps[-1][1].epoch == pytest.approx(2 + 6 / 11)
    assert watched.trainer.state.epoch == pytest.approx(2 + 6 / 11)


def test_more_than_the_rest_of_an_epoch_is_not_skipped(tmp_path: Path, monkeypatch: Patch) -> None:
    watched = play_watched(two_epochs, tmp_path, monkeypatch, Script({2: ["skip 9"]}))
    logged = [event.text for event in run_of(watched).events(LogEmitted)]
    assert any("only 4 of 9 steps of data were left in epoch 0" in text for text in logged)
    steps = run_of(watched).at(StepFinished)
    assert [step.epoch for number, step in steps if number in (2, 3)] == [4 / 11, 1 + 2 / 11]


def test_a_stop_ends_train_and_the_script_goes_on(tmp_path: Path, monkeypatch: Patch) -> None:
    watched = play_watched(two_epochs, tmp_path, monkeypatch, Script({3: ["stop"]}))
    assert watched.trainer.state.global_step == 3
    (ended,) = run_of(watched).events(RunEnded)
    assert ended.state is RunState.STOPPED
    assert ended.checkpoint is not None


def test_a_loss_that_is_not_finite_changes_no_weight(tmp_path: Path, monkeypatch: Patch) -> None:
    watched = play_watched(lambda folder: poisoned(folder, 5), tmp_path, monkeypatch)
    steps = run_of(watched).events(StepFinished)
    assert [step.skipped for step in steps] == [number == 5 for number in range(1, 13)]
    assert math.isnan(steps[4].loss)
    assert torch.isfinite(watched.weights).all()


def test_a_recovery_skips_the_data_and_halves_the_rate(tmp_path: Path, monkeypatch: Patch) -> None:
    script = Script({4: ["checkpoint"], 7: ["recover"]})
    watched = play_watched(lambda folder: poisoned(folder, 6), tmp_path, monkeypatch, script)
    played = run_of(watched)
    assert played.events(CommandFailed) == []
    (back,) = played.events(RolledBack)
    assert (back.from_step, back.to_step, back.skipped_batches > 1) == (7, 4, True)
    assert [e.command for e in played.events(CommandApplied)][-1].startswith("recover")
    assert played.events(StepFinished)[-1].lr_scale == 0.5
    assert watched.trainer.state.global_step == 12


def test_commands_that_the_trainer_cannot_obey_are_refused_with_the_reason(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    script = Script({2: ["profile 2", "sample hello"]})
    played = run_of(play_watched(two_epochs, tmp_path, monkeypatch, script))
    reasons = [event.reason for event in played.events(CommandFailed)]
    assert reasons == [
        "not possible in this run: a watched script cannot be profiled",
        "not possible in this run: the trainer has no tokenizer (processing_class)",
    ]
    started = played.events(RunStarted)[-1]
    assert set(started.refused) == {
        "profile",
        "sample",
        "chat",
        "quarantine",
        "culprit",
        "mix",
        "soup",
        "keep",
        *("weight_decay", "dropout", "schedule"),
    }
    assert started.script


def test_an_old_checkpoint_is_refused_when_its_batches_are_gone(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(batch_tape, "RNG_BYTES", 2**19)
    script = Script({8: ["rollback 0"]})
    played = run_of(play_watched(two_epochs, tmp_path, monkeypatch, script, tape_mib=2))
    (failed,) = played.events(CommandFailed)
    assert "the batches since then are no longer held" in failed.reason
    assert any(
        "a rollback to the oldest checkpoints is not possible" in e.text
        for e in played.events(LogEmitted)
    )
    assert [number for number, _ in played.at(StepFinished)] == list(range(1, 13))


def test_overflows_of_a_loss_scaler_use_up_no_budget(tmp_path: Path) -> None:
    trainer, _ = build(two_epochs, tmp_path)
    plan = plan_checkpoints(1, 1, None, 3, None)
    assert watched_config(trainer, "run", plan, 3).guard.nonfinite_budget == 5
    trainer.args.fp16 = True
    assert watched_config(trainer, "run", plan, 3).guard.nonfinite_budget == 100


class Raising(TrainerCallback):  # type: ignore[misc]  # transformers is untyped
    """A user's callback with a mistake."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 3:
            raise RuntimeError("mine")


def test_an_error_of_the_script_stays_its_own(tmp_path: Path, monkeypatch: Patch) -> None:
    def failing(folder: Path) -> Any:
        trainer = two_epochs(folder)
        trainer.add_callback(Raising())
        return trainer

    with pytest.raises(RuntimeError, match="mine"):
        play_watched(failing, tmp_path, monkeypatch)


@pytest.mark.parametrize(
    "method",
    in_part(["begin_step", "record_loss", "check_update", "end_step"], ["end_step"]),
)
def test_an_error_of_fttui_never_ends_the_training(
    method: str, tmp_path: Path, monkeypatch: Patch, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = train_alone(two_epochs, tmp_path / "alone")
    calls = []
    whole = getattr(step_loop.StepLoop, method)

    def broken(*args: Any, **kwargs: Any) -> Any:
        calls.append(method)
        if len(calls) == 7:
            raise KeyError("a mistake of fttui")
        return whole(*args, **kwargs)

    monkeypatch.setattr(step_loop.StepLoop, method, broken)
    script = Script({4: ["rollback 0"], 5: ["lr scale 1"]})
    watched = play_watched(two_epochs, tmp_path / "watched", monkeypatch, script)
    assert torch.equal(watched.weights, alone.weights)
    assert watched.trainer.state.global_step == 12
    assert len(calls) == 7
    said = capsys.readouterr().err
    assert "training continues unwatched" in said
    (ended,) = run_of(watched).events(RunEnded)
    assert "a mistake of fttui" in ended.error
    assert "KeyError" in (run_of(watched).run.logs / "watch-error.log").read_text()


@pytest.mark.parametrize(
    ("script", "mistake"),
    in_part([({}, 3), ({8: ["rollback 0"]}, 10)], [({8: ["rollback 0"]}, 10)]),
)
def test_after_an_error_of_fttui_every_epoch_is_trained(
    script: dict[int, list[str]], mistake: int, tmp_path: Path, monkeypatch: Patch
) -> None:
    alone = train_alone(three_epochs, tmp_path / "alone")
    whole, calls = step_loop.StepLoop.check_update, []

    def broken(*args: Any, **kwargs: Any) -> Any:
        calls.append("check_update")
        if len(calls) == mistake:
            raise KeyError("a mistake of fttui")
        return whole(*args, **kwargs)

    monkeypatch.setattr(step_loop.StepLoop, "check_update", broken)
    watched = play_watched(three_epochs, tmp_path / "watched", monkeypatch, Script(script))
    assert len(calls) == mistake
    assert watched.trainer.state.global_step == 18
    assert torch.equal(watched.weights, alone.weights)


def test_an_object_that_is_no_trainer_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    watch_trainer(torch.nn.Linear(1, 1), WatchOptions())
    said = capsys.readouterr().err
    assert "torch.nn.modules.linear.Linear is not a transformers.Trainer" in said
    assert "fttui.watch(model=…, optimizer=…)" in said


def test_unwatch_restores_the_trainer(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("FTTUI_RUNS", str(tmp_path / "runs"))
    monkeypatch.setattr("fttui.engine.watch.script_run.launch_hub", lambda run: None)
    trainer, _ = build(two_epochs, tmp_path)
    before = dict(vars(trainer))
    callbacks = list(trainer.callback_handler.callbacks)
    watch_trainer(trainer, WatchOptions())
    assert trainer.train.__self__ is not trainer
    unwatch_trainer(trainer)
    assert vars(trainer) == before
    trainer.train()
    assert trainer.callback_handler.callbacks == callbacks


def test_a_trained_trainer_holds_nothing_of_fttui(tmp_path: Path, monkeypatch: Patch) -> None:
    watched = play_watched(two_epochs, tmp_path, monkeypatch)
    trainer = watched.trainer
    for owner in (trainer, trainer.accelerator, trainer.optimizer):
        ours = [
            name
            for name, value in vars(owner).items()
            if "fttui" in str(getattr(value, "__module__", ""))
        ]
        assert ours == []
    assert not any("fttui" in type(c).__module__ for c in trainer.callback_handler.callbacks)
    trainer.train()
    assert not torch.equal(weights_of(trainer), watched.weights)


def test_a_watched_trainer_is_freed_with_its_last_reference(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setenv("FTTUI_RUNS", str(tmp_path / "runs"))
    monkeypatch.setattr("fttui.engine.watch.script_run.launch_hub", lambda run: None)
    trainer, _ = build(lambda folder: plain(folder, num_train_epochs=1), tmp_path)
    watch_trainer(trainer, WatchOptions())
    watch_trainer(trainer, WatchOptions())
    trainer.train()
    assert len(list((tmp_path / "runs").iterdir())) == 1
    model = weakref.ref(trainer.model)
    del trainer
    gc.collect()
    assert model() is None


def test_a_second_training_is_a_second_run(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("FTTUI_RUNS", str(tmp_path / "runs"))
    monkeypatch.setattr("fttui.engine.watch.script_run.launch_hub", lambda run: None)
    trainer, _ = build(lambda folder: plain(folder, num_train_epochs=1), tmp_path)
    watch_trainer(trainer, WatchOptions())
    trainer.train()
    trainer.train()
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_checkpoints_are_written_and_kept_as_asked(tmp_path: Path, monkeypatch: Patch) -> None:
    watched = play_watched(two_epochs, tmp_path, monkeypatch, checkpoint_every=2, keep=2)
    played = run_of(watched)
    assert [step for step, _ in played.at(CheckpointSaved)] == [0, 2, 4, 6, 8, 10]
    kept = sorted(path.name for path in played.run.checkpoints.iterdir())
    assert len(kept) <= 4


def test_a_train_that_a_constructor_puts_in_place_later_is_watched_all_the_same(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    """As under `fttui exec`, which knows of a trainer when its base class has been made."""
    monkeypatch.setenv("FTTUI_RUNS", str(tmp_path / "runs"))
    monkeypatch.setattr(script_run, "launch_hub", lambda run: None)
    trainer, _ = build(lambda folder: plain(folder, max_steps=2), tmp_path)
    watch_trainer(trainer, WatchOptions(), at_once=False)
    calls = []

    def prepared(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append("train")
        return type(self).train(self, *args, **kwargs)

    trainer.train = own = MethodType(prepared, trainer)
    trainer.train()
    (path,) = (tmp_path / "runs").iterdir()
    kinds = [type(one.event) for one in read_records(RunDirectory(path))]
    assert (calls, kinds.count(StepFinished), kinds.count(RunEnded)) == (["train"], 2, 1)
    unwatch_trainer(trainer)
    assert trainer.train is own
    assert "_inner_training_loop" not in vars(trainer)
