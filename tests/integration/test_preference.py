"""Preferences and rated completions in the real loop: figures, exact returns, ranks."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from fttui.engine.protocol.events import EvalFinished, SampleGenerated, StepFinished
from fttui.engine.protocol.states import RunState
from fttui.engine.run.checkpoint_store import CheckpointStore
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.train.loop.step_loop import StepLoop
from fttui.engine.train.trainers.eager import EagerPreferenceForward
from tests.support.matrix import in_part
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


METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "dpo": ("dpo", {}),
    "kto": ("kto", {}),
    "reward": ("reward", {}),
    **{name: ("dpo", {"preference__loss": name}) for name in ("orpo", "simpo", "cpo", "slic")},
    "aot": ("dpo", {"preference__loss": "aot_unpaired", "train__batch": 2}),
    "sum": ("dpo", {"preference__loss": "{apo_zero: 0.5, aot: 1}", "preference__ld_alpha": 0.3}),
    "apo": ("kto", {"preference__rated_loss": "apo_zero_unpaired"}),
}
"""The task and the settings of each method."""


def test_a_loss_without_reference_needs_one_pass_and_adds_its_next_token_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways: list[str] = []
    forward = EagerPreferenceForward.__call__

    def counted(self: Any, *args: Any, **options: Any) -> Any:
        ways.append(options.get("way", "trained"))
        return forward(self, *args, **options)

    monkeypatch.setattr(EagerPreferenceForward, "__call__", counted)
    sets: dict[str, Any] = {"preference__loss": "orpo", "adapter__dropout": 0.0}
    played = play(new_run(tmp_path, "dpo", eval__every=8, train__lr=0.03, **sets))
    steps = played.events(StepFinished)
    assert set(ways) == {"trained"}
    assert all(set(step.parts) == {"preference", "ce"} for step in steps)
    for step in steps:
        assert step.loss == pytest.approx(step.parts["preference"] + step.parts["ce"], abs=1e-5)
    assert steps[-1].parts["ce"] < steps[0].parts["ce"]
    (evaluation,) = played.events(EvalFinished)
    assert set(evaluation.metrics) == {"loss", "ce", *FIGURES}
    assert evaluation.metrics["rewards_chosen"] < 0, "0.1 × mean log-probability per token"


def test_preferences_are_learned_from_the_model_as_it_was(tmp_path: Path) -> None:
    sets: dict[str, Any] = {"adapter__dropout": 0.0, "preference__beta": 1.0, "train__lr": 0.03}
    sets |= {"eval__every": 4, "eval__samples": "[hello]", "checkpoint__best": "reward_margin"}
    run = new_run(tmp_path, "dpo", **sets)
    played = play(run)
    steps = played.events(StepFinished)
    assert all(set(step.extra) == FIGURES and not step.parts for step in steps)
    first, last = steps[0], steps[-1]
    assert first.loss == pytest.approx(math.log(2), abs=1e-6)
    assert first.extra["reward_margin"] == pytest.approx(0, abs=1e-6)
    assert last.loss_or_nan < first.loss_or_nan
    assert last.extra["reward_margin"] > 0.1
    margin = last.extra["rewards_chosen"] - last.extra["rewards_rejected"]
    assert last.extra["reward_margin"] == pytest.approx(margin, abs=1e-5)
    first_eval, evaluation = played.events(EvalFinished)
    assert set(evaluation.metrics) == {"loss", *FIGURES}
    assert evaluation.metrics["reward_accuracy"] > 0.5
    assert evaluation.metrics["reward_margin"] > first_eval.metrics["reward_margin"]
    known = {m.step: m.metrics.get("reward_margin") for m in CheckpointStore(run).all()}
    assert known[8] == evaluation.metrics["reward_margin"]
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


def test_a_reward_model_learns_to_tell_answers_apart(tmp_path: Path) -> None:
    sets: dict[str, Any] = {"adapter__dropout": 0.0, "train__lr": 0.01, "train__steps": 16}
    run = new_run(tmp_path, "reward", eval__every=8, checkpoint__best="reward_margin", **sets)
    played = play(run)
    steps = played.events(StepFinished)
    figures = {"rewards_chosen", "rewards_rejected", "reward_margin", "reward_accuracy"}
    assert all(set(step.extra) == figures and not step.parts for step in steps)
    assert steps[0].loss == pytest.approx(math.log(2), abs=0.05)
    first, last = played.events(EvalFinished)
    assert set(last.metrics) == {"loss", *figures}
    assert last.metrics["loss"] < first.metrics["loss"]
    assert last.metrics["reward_margin"] > max(0.1, first.metrics["reward_margin"])
    newest = run.path / "checkpoints" / CheckpointStore(run).all()[-1].name
    saved = load_file(newest / "adapter_model.safetensors")
    assert [name for name in saved if name.endswith("score.weight")]


@pytest.mark.parametrize("at", in_part([2, 10], [10]))
def test_a_pause_within_a_kto_step_drops_and_repeats_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """Asked for in the pass for the divergence, and in the one for the loss."""
    sets: dict[str, Any] = {"train__steps": 3, "train__accumulate": 4, "train__batch": 2}
    straight = play(_new(tmp_path / "straight", "kto", **sets))
    asked, may_continue = [0], StepLoop.may_continue

    def pause(self: Any) -> bool:
        if self._control.position.step == 1:
            asked[0] += 1
            if asked[0] == at:
                self._conclusion._event_log.send("pause")
        return may_continue(self)

    monkeypatch.setattr(StepLoop, "may_continue", pause)
    script = Script(states={RunState.PAUSED: ["resume"]})
    paused = play(_new(tmp_path / "paused", "kto", **sets), script)
    assert asked[0] > 12
    assert paused.losses() == straight.losses()
    assert _adapter(paused.run) == _adapter(straight.run)


def _new(folder: Path, task: str, **sets: Any) -> RunDirectory:
    folder.mkdir()
    return new_run(folder, task, **sets)


@pytest.mark.parametrize("name", in_part(METHODS, ["kto"]))
def test_a_run_that_went_back_and_was_resumed_ends_as_a_straight_one(
    tmp_path: Path, name: str
) -> None:
    task, sets = METHODS[name]
    sets = {"train__steps": 6, "checkpoint__every": 2, **sets}
    straight = _new(tmp_path / "straight", task, **sets)
    other = _new(tmp_path / "other", task, **sets)
    play(straight)
    play(other, Script({3: ["rollback 2"], 4: ["stop"]}))
    play(other, resume="last")
    assert len(_steps(other)) == len(_steps(straight)) == 6
    assert _steps(other) == _steps(straight)
    assert _adapter(other) == _adapter(straight)


def _steps(run: RunDirectory) -> dict[int, Any]:
    """The newest figures of every step, to the last bit."""
    return {
        record.step: (record.event.loss, record.event.grad_norm, record.event.extra)
        for record in read_records(run)
        if isinstance(record.event, StepFinished)
    }


def _adapter(run: RunDirectory) -> str:
    return CheckpointStore(run).all()[-1].files["adapter_model.safetensors"].sha256


def _play(place: Any, runs: list[RunDirectory]) -> None:
    for run in runs:
        play(run, place=place)


@pytest.mark.long
@pytest.mark.parametrize(
    "methods", in_part(["dpo kto", "orpo simpo", "reward", "aot sum apo"], ["dpo kto"])
)
def test_two_ranks_are_one_with_twice_the_batch(tmp_path: Path, methods: str) -> None:
    names = methods.split()
    sets: dict[str, Any] = {"adapter__dropout": 0.0, "train__steps": 2, "train__optimizer": "sgd"}
    one, two = [], []
    for name in names:
        fast = "static" if name == names[0] else "off"
        task, own = METHODS[name]
        half = {"train__batch": 2, "train__devices": 2}
        one.append(_new(tmp_path / f"1-{name}", task, **{**sets, **own, "train__batch": 4}))
        two.append(
            _new(tmp_path / f"2-{name}", task, **{**sets, **own, **half, "train__fast": fast})
        )
    for run in one:
        play(run)
    assert in_ranks(2, _play, two) == [0, 0]
    for alone, together in zip(one, two, strict=True):
        assert _figures(together) == pytest.approx(_figures(alone), abs=1e-5)


def _figures(run: RunDirectory) -> dict[str, float]:
    figures = {}
    for record in read_records(run):
        if isinstance(record.event, StepFinished):
            figures[f"{record.step} loss"] = record.event.loss_or_nan
            figures |= {f"{record.step} {k}": v for k, v in record.event.extra.items()}
        if isinstance(record.event, EvalFinished):
            figures |= {f"eval {name}": value for name, value in record.event.metrics.items()}
    return figures
