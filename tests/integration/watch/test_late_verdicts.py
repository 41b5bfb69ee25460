"""Updates that the device refuses by itself; the host learns of it during the next step.

A GPU does so. Here the CPU stands for it: a fused optimizer obeys it there in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fttui.engine.protocol.events import (
    AnomalyRaised,
    EvalFinished,
    GradientsMeasured,
    LogEmitted,
    RolledBack,
    RunEnded,
    StepFinished,
)
from fttui.engine.protocol.states import RunState
from fttui.engine.train.loop.step_conclusion import StepConclusion
from fttui.engine.train.loop.update_gate import FinalGate
from fttui.engine.watch.huggingface import session
from tests.support.foreign import Trained, plain, play_watched, train_alone
from tests.support.matrix import in_part
from tests.support.odd_steps import told
from tests.support.training import Script

Patch = pytest.MonkeyPatch
BACK_AND_FORTH = {5: ["rollback 4"], 11: ["rollback 4"], 13: ["rollback 0"]}


@pytest.fixture(autouse=True)
def device_that_judges(monkeypatch: Patch) -> None:
    monkeypatch.setattr(session, "in_its_own_time", lambda device: True)
    monkeypatch.setattr(session, "share_of_memory", lambda device: 2**30)


def at_once(monkeypatch: Patch) -> None:
    monkeypatch.setattr(session, "in_its_own_time", lambda device: False)


def fused(folder: Path, **changed: Any) -> Any:
    return plain(folder, optim="adamw_torch_fused", **changed)


def poisoned(folder: Path, step: int = 5, **changed: Any) -> Any:
    """The same trainer with a loss of NaN in one step, the first time that it is trained."""
    trainer = fused(folder, **changed)
    compute, left = trainer.compute_loss, [trainer.args.gradient_accumulation_steps]

    def compute_loss(*args: Any, **kwargs: Any) -> Any:
        loss = compute(*args, **kwargs)
        if trainer.state.global_step + 1 != step or not left[0]:
            return loss
        left[0] -= 1
        return loss * math.nan

    trainer.compute_loss = compute_loss
    return trainer


def steps_of(trained: Trained) -> list[StepFinished]:
    assert trained.played is not None
    return trained.played.events(StepFinished)


def test_rollbacks_are_exact_and_no_verdict_is_waited_for(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    late: list[bool] = []
    decide = StepConclusion.decide

    def noted(self: Any, step: Any) -> None:
        late.append(step.ended)
        decide(self, step)

    monkeypatch.setattr(StepConclusion, "decide", noted)
    alone = train_alone(fused, tmp_path / "alone")
    script = Script(dict(BACK_AND_FORTH))
    watched = play_watched(
        fused, tmp_path / "back", monkeypatch, script, checkpoint_every=4, keep=10
    )
    assert watched.played is not None
    assert torch.equal(watched.weights, alone.weights)
    went = [(one.from_step, one.to_step) for one in watched.played.events(RolledBack)]
    assert went == [(6, 4), (12, 4), (13, 0)]  # steps 6 and 12 have a single micro-batch
    assert all(late)
    (ended,) = watched.played.events(RunEnded)
    assert ended.state is RunState.FINISHED


POLICIES = [(policy, count) for policy in ("skip", "halt", "rollback") for count in (1, 2)]


@pytest.mark.parametrize(
    ("policy", "accumulate"), in_part(POLICIES, [("skip", 1), ("rollback", 2)])
)
def test_an_update_that_is_not_finite_has_the_same_effect_as_with_a_verdict_at_once(
    tmp_path: Path, monkeypatch: Patch, policy: str, accumulate: int
) -> None:
    changed = {"gradient_accumulation_steps": accumulate, "max_steps": 8, "num_train_epochs": 1}
    found = []
    for name in ("late", "at once"):
        script = Script({0: [f"policy nonfinite {policy}"]}, states={RunState.HALTED: ["resume"]})
        watched = play_watched(
            lambda folder: poisoned(folder, **changed), tmp_path / name, monkeypatch, script
        )
        found.append(watched)
        at_once(monkeypatch)
    late, soon = found
    assert torch.isfinite(late.weights).all()
    assert torch.equal(late.weights, soon.weights)
    assert late.played is not None
    assert soon.played is not None
    kinds = ("StepFinished", "RolledBack", "AnomalyRaised", "GradientsMeasured")
    told_late, told_soon = (
        [one for one in told(run) if one[2] in kinds] for run in (late.played, soon.played)
    )
    assert told_late == told_soon
    assert [step.skipped for step in steps_of(late)].count(True) == 1
    (measured,) = late.played.events(GradientsMeasured)
    assert any(math.isnan(module.grad_norm) for module in measured.modules)


def unlabelled(folder: Path, batch: int = 4, **changed: Any) -> Any:
    """The same trainer with a batch whose labels are all ignored."""
    trainer = fused(folder, **changed)
    collate, seen = trainer.data_collator, [0]

    def collator(rows: Any) -> Any:
        found = collate(rows)
        seen[0] += 1
        if seen[0] == batch:
            found["labels"] = torch.full_like(found["labels"], -100)
        return found

    trainer.data_collator = collator
    return trainer


@pytest.mark.parametrize("late", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_step_without_labels_is_named_and_makes_no_update(
    tmp_path: Path, monkeypatch: Patch, late: bool
) -> None:
    """Its loss is 0 / 0, which would count as an update that is not finite, and halt the run."""
    if not late:
        at_once(monkeypatch)
    script = Script({0: ["policy nonfinite halt"]})
    changed = {"gradient_accumulation_steps": 1, "max_steps": 6, "num_train_epochs": 1}
    watched = play_watched(lambda f: unlabelled(f, **changed), tmp_path, monkeypatch, script)
    assert watched.played is not None
    steps = watched.played.at(StepFinished)
    assert [step for step, event in steps if event.without_targets] == [4]
    assert [step for step, event in steps if event.skipped] == [4]
    assert len(steps) == 6
    told = [one.text for one in watched.played.events(LogEmitted)]
    assert any("step 4 has nothing to learn" in text for text in told)
    assert not watched.played.events(AnomalyRaised)
    assert torch.isfinite(watched.weights).all()


def test_gradients_are_measured_around_an_update_that_the_host_decides(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    script = Script({2: ["gradients"]})
    watched = play_watched(lambda f: fused(f, max_steps=5), tmp_path, monkeypatch, script)
    assert watched.played is not None
    ((step, measured),) = watched.played.at(GradientsMeasured)
    assert step in (3, 4)
    assert all(module.update_norm > 0 for module in measured.modules)


def test_an_evaluation_of_the_script_comes_after_its_step(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    def evaluating(folder: Path) -> Any:
        return fused(folder, max_steps=4, eval_strategy="steps", eval_steps=2)

    watched = play_watched(evaluating, tmp_path, monkeypatch)
    assert watched.played is not None
    kept = [r for r in watched.played.records if isinstance(r.event, StepFinished | EvalFinished)]
    assert [(r.step, type(r.event).__name__) for r in kept] == [
        *((1, "StepFinished"), (2, "StepFinished"), (2, "EvalFinished")),
        *((3, "StepFinished"), (4, "StepFinished"), (4, "EvalFinished")),
    ]


def test_a_training_that_a_callback_ends_has_its_last_step(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    def ended_early(folder: Path) -> Any:
        from transformers import TrainerCallback

        class Ends(TrainerCallback):  # type: ignore[misc]  # transformers is untyped
            def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                control.should_training_stop = state.global_step == 3

        trainer = fused(folder)
        trainer.add_callback(Ends())
        return trainer

    watched = play_watched(ended_early, tmp_path, monkeypatch)
    assert [step.loss_or_nan > 0 for step in steps_of(watched)] == [True] * 3


class HostReads(TorchDispatchMode):
    """Counts how often the host reads a number of a tensor, which would wait for a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def reads_per_step(train: Callable[[int], object]) -> float:
    """Count the reads of training steps alone, as what four more of them add."""
    counts = []
    for steps in (4, 8):
        with HostReads() as reads:
            train(steps)
        counts.append(reads.count)
    return (counts[1] - counts[0]) / 4


def test_a_watched_step_reads_no_more_from_the_device_than_a_bare_one(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    """What the host learns late comes by a copy that it does not wait for (`settle`)."""

    def watched(steps: int) -> None:
        build = partial(fused, max_steps=steps)
        play_watched(build, tmp_path / f"watched-{steps}", monkeypatch, checkpoint_every=0)

    bare = reads_per_step(
        lambda steps: train_alone(partial(fused, max_steps=steps), tmp_path / f"bare-{steps}")
    )
    assert bare > 0  # those of the trainer itself, so the count counts
    assert reads_per_step(watched) == bare


def test_large_gradients_are_not_kept_and_those_of_the_next_update_are_measured(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(session, "share_of_memory", lambda device: 16)
    kept: list[int] = []
    gradients = FinalGate.gradients

    def noted(self: FinalGate) -> Any:
        found = gradients(self)
        kept.append(len(found))
        return found

    monkeypatch.setattr(FinalGate, "gradients", noted)
    watched = play_watched(partial(poisoned, max_steps=9), tmp_path, monkeypatch)
    assert set(kept) == {0}
    assert torch.isfinite(watched.weights).all()
    assert [one.skipped for one in steps_of(watched)].index(True) == 4
    assert watched.played is not None
    ((step, measured),) = watched.played.at(GradientsMeasured)
    assert step in (6, 7)
    assert measured.reason.startswith("after ")
    assert all(math.isfinite(one.grad_norm) and one.update_norm > 0 for one in measured.modules)
