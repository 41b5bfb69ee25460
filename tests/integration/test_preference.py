"""Preferences and rated completions in the real loop: figures, exact returns, ranks."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from fttui.engine.protocol.events import EvalFinished, RunStarted, SampleGenerated, StepFinished
from fttui.engine.protocol.states import RunState
from fttui.engine.run.layout import RunDirectory
from fttui.engine.run.ledger import Ledger
from tests.support.ranks import in_ranks
from tests.support.training import Script, new_run, play, read_records

FIGURES = {
    "rewards_chosen",
    "rewards_rejected",
    "reward_margin",
    "reward_accuracy",
    "logps_chosen",
    "logps_rejected",
}


def test_preferences_are_learned_from_the_model_as_it_was(tmp_path: Path) -> None:
    sets: dict[str, Any] = {"adapter__dropout": 0.0, "preference__beta": 1.0, "train__lr": 0.03}
    run = new_run(tmp_path, "dpo", eval__every=8, eval__samples="[hello]", **sets)
    played = play(run)
    steps = played.events(StepFinished)
    assert all(set(step.extra) == FIGURES and not step.parts for step in steps)
    first, last = steps[0], steps[-1]
    assert first.loss == pytest.approx(math.log(2), abs=1e-6)
    assert first.extra["reward_margin"] == pytest.approx(0, abs=1e-6)
    assert last.loss < first.loss
    assert last.extra["reward_margin"] > 0.1
    margin = last.extra["rewards_chosen"] - last.extra["rewards_rejected"]
    assert last.extra["reward_margin"] == pytest.approx(margin, abs=1e-5)
    (evaluation,) = played.events(EvalFinished)
    assert set(evaluation.metrics) == {"loss", *FIGURES}
    assert evaluation.metrics["reward_accuracy"] > 0.5
    assert played.events(SampleGenerated)


def test_ratings_are_learned_and_the_divergence_is_shown(tmp_path: Path) -> None:
    played = play(new_run(tmp_path, "kto", preference__ce_weight=0.1, eval__every=8))
    steps = played.events(StepFinished)
    assert all({"kl", *FIGURES} == set(step.extra) for step in steps)
    assert all(set(step.parts) == {"preference", "ce"} for step in steps)
    joint = steps[-1].parts["preference"] + 0.1 * steps[-1].parts["ce"]
    assert steps[-1].loss == pytest.approx(joint, abs=1e-5)
    (evaluation,) = played.events(EvalFinished)
    assert set(evaluation.metrics) == {"loss", "ce", "kl", *FIGURES}
    assert evaluation.metrics["kl"] >= 0


@pytest.mark.parametrize("task", ["dpo", "kto"])
def test_going_back_repeats_every_figure_to_the_last_bit(tmp_path: Path, task: str) -> None:
    played = play(new_run(tmp_path, task, train__steps=7), Script({6: ["rollback 4"]}))
    by_timeline: dict[int, dict[int, Any]] = {1: {}, 2: {}}
    for record in played.records:
        if isinstance(record.event, StepFinished):
            event = record.event
            figures = (event.loss, event.grad_norm, event.extra)
            by_timeline[record.timeline][record.step] = figures
    assert set(by_timeline[2]) == {5, 6, 7}
    assert all(by_timeline[1][step] == by_timeline[2][step] for step in (5, 6))
    assert len({event.loss for event in played.events(StepFinished)}) == 7


def _new(folder: Path, task: str, **sets: Any) -> RunDirectory:
    folder.mkdir()
    return new_run(folder, task, **sets)


@pytest.mark.parametrize("task", ["dpo", "kto"])
def test_a_resumed_run_ends_in_the_same_adapter(tmp_path: Path, task: str) -> None:
    straight = _new(tmp_path / "straight", task, train__steps=4)
    resumed = _new(tmp_path / "resumed", task, train__steps=4)
    play(straight)
    play(resumed, Script({2: ["stop"]}))
    play(resumed, resume="last")
    assert _adapter(resumed) == _adapter(straight)


def _adapter(run: RunDirectory) -> str:
    return Ledger(run).all()[-1].files["adapter_model.safetensors"].sha256


def _play(place: Any, runs: list[RunDirectory]) -> None:
    for run in runs:
        play(run, place=place)


def test_two_ranks_are_one_with_twice_the_batch(tmp_path: Path) -> None:
    sets: dict[str, Any] = {"adapter__dropout": 0.0, "train__steps": 2, "train__optimizer": "sgd"}
    tasks = ("dpo", "kto")
    one = [_new(tmp_path / f"1-{task}", task, train__batch=4, **sets) for task in tasks]
    two = [
        _new(tmp_path / f"2-{task}", task, train__batch=2, train__devices=2, **sets)
        for task in tasks
    ]
    for run in one:
        play(run)
    assert in_ranks(2, _play, two) == [0, 0]
    for alone, together in zip(one, two, strict=True):
        assert _figures(together) == pytest.approx(_figures(alone), abs=1e-5)


def _figures(run: RunDirectory) -> dict[str, float]:
    figures = {}
    for record in read_records(run):
        if isinstance(record.event, StepFinished):
            figures[f"{record.step} loss"] = record.event.loss
            figures |= {f"{record.step} {k}": v for k, v in record.event.extra.items()}
        if isinstance(record.event, EvalFinished):
            figures |= {f"eval {name}": value for name, value in record.event.metrics.items()}
    return figures


def test_a_run_ends_when_preferences_are_no_longer_better_told_apart(tmp_path: Path) -> None:
    stop = "{metric: reward_margin, patience: 1, min_delta: 1000}"
    run = new_run(tmp_path, "dpo", eval__every=2, train__early_stop=stop)
    assert play(run).outcome.state is RunState.STOPPED
    assert Ledger(run).all()[-1].step == 4


def test_what_was_dropped_is_said(tmp_path: Path) -> None:
    run = new_run(tmp_path, "dpo", train__steps=1, data__max_length=12)
    facts = play(run).events(RunStarted)[-1].facts
    assert {"dropped (no label left)", "dropped (chosen = rejected)", "cut to 12 tokens"} <= set(
        facts
    )
