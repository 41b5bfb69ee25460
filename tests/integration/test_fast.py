"""Static shapes inside the real loop: the same training, under the same control.

Graphs replay what runs here directly; `tests/bench/gpu_exact.py` repeats this with them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.models.llama import modeling_llama

from fttui.engine.errors import ConfigError
from fttui.engine.protocol.events import CommandApplied, EvalFinished, RunStarted, StepFinished
from fttui.engine.protocol.states import RunState
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.train.controlled_session import SessionOutcome
from fttui.engine.train.distributed.place import RankPlace
from tests.support.matrix import in_part
from tests.support.ranks import in_ranks
from tests.support.training import Played, Script, new_run, play, read_records


def played(
    tmp_path: Path, name: str, task: str, script: Script | None = None, **sets: Any
) -> Played:
    folder = tmp_path / name
    folder.mkdir()
    return play(new_run(folder, task, train__steps=4, **sets), script)


@pytest.mark.parametrize(
    ("task", "sets"),
    [
        pytest.param(
            "sft",
            {"data__max_length": 96, "contrastive__kind": "simctg"},
            marks=pytest.mark.long,
        ),
        pytest.param(
            "sft",
            {"data__packing": "true", "data__max_length": 96, "train__batch": 2},
            marks=pytest.mark.long,
        ),
        ("contrastive", {}),
        ("sft", {"train__memory": "lean", "model__quantize": "nf4", "eval__every": 2}),
        ("dpo", {"preference__ce_weight": 0.1, "preference__loss": "sigmoid_norm"}),
        pytest.param("dpo", {"preference__loss": "orpo"}, marks=pytest.mark.long),
        pytest.param(
            "dpo",
            {"preference__loss": "{discopop: 1, aot: 1}", "preference__ld_alpha": 0.5},
            marks=pytest.mark.long,
        ),
        pytest.param("sft", {"train__focal": 2.0}, marks=pytest.mark.long),
        pytest.param("kto", {}, marks=pytest.mark.long),
        pytest.param(
            "dpo", {"train__memory": "lean", "model__quantize": "nf4"}, marks=pytest.mark.long
        ),
    ],
    ids=[
        "sft",
        "packed",
        "contrastive",
        "lean",
        "dpo",
        "orpo",
        "dpo sum",
        "focal",
        "kto",
        "lean dpo",
    ],
)
def test_the_same_losses_as_without_graphs(tmp_path: Path, task: str, sets: Any) -> None:
    same: dict[str, Any] = {"adapter__dropout": 0.0, **sets}
    ordinary = played(tmp_path, "ordinary", task, train__fast="off", **same)
    static = played(tmp_path, "static", task, train__fast="static", **same)
    assert static.losses() == pytest.approx(ordinary.losses(), rel=2e-6)
    evaluated = [
        [one.metrics["loss"] for one in run.events(EvalFinished)] for run in (ordinary, static)
    ]
    assert evaluated[1] == pytest.approx(evaluated[0], rel=2e-6)
    assert evaluated[0]
    assert static.events(RunStarted)[-1].facts["fast mode"] == "static shapes"


def test_a_layer_that_is_computed_again_is_computed_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = modeling_llama.apply_rotary_pos_emb
    with_gradient: list[bool] = []

    def told(*args: Any, **kwargs: Any) -> Any:
        with_gradient.append(torch.is_grad_enabled() and args[0].requires_grad)
        return usual(*args, **kwargs)

    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", told)
    sets: dict[str, Any] = {"train__fast": "static", "train__activation_checkpointing": "true"}
    played(tmp_path, "again", "sft", **sets)
    assert with_gradient, "evaluations turn as the model's own code does"
    assert not any(with_gradient)


@pytest.mark.parametrize("task", in_part(["sft", "dpo", "kto"], ["sft"]))
def test_it_goes_back_and_takes_every_setting_as_ever(tmp_path: Path, task: str) -> None:
    sets: dict[str, Any] = {"train__fast": "static", "checkpoint__every": 2}
    sets["train__neftune"] = 5.0 if task == "sft" else 0.0
    straight = played(tmp_path, "straight", task, **sets).losses()
    script = Script({1: ["pause release"], 3: ["rollback 2"]}, states={RunState.PAUSED: ["resume"]})
    back = played(tmp_path, "back", task, script, **sets).losses()
    assert back == straight
    script = Script({2: ["lr scale 0.5", "clip 0.01", "skip 1"]})
    steered = played(tmp_path, "steered", task, script, **sets)
    assert len(steered.events(CommandApplied)) == 3
    assert steered.losses()[2] == straight[2]
    assert steered.losses()[4] != straight[4]


def play_as_rank(place: RankPlace, run: RunDirectory, script: Script) -> None:
    play(run, script, place=place)


def played_by_two(folder: Path, task: str, script: Script | None = None, **sets: Any) -> Played:
    folder.mkdir()
    run = new_run(folder, task, train__batch=2, train__devices=2, adapter__dropout=0.0, **sets)
    assert in_ranks(2, play_as_rank, run, script or Script()) == [0, 0]
    return Played(run, SessionOutcome(RunState.FINISHED, None), read_records(run))


# `make test` has two ranks with static shapes in the next test and in that of preferences.
@pytest.mark.long
@pytest.mark.parametrize("task", ["contrastive", "kto"])
def test_two_ranks_average_their_gradients(tmp_path: Path, task: str) -> None:
    ordinary, static = (
        played_by_two(tmp_path / fast, task, train__steps=3, train__fast=fast).losses()
        for fast in ("off", "static")
    )
    assert static == pytest.approx(ordinary, rel=2e-6)


def test_two_ranks_train_and_obey_as_one_with_twice_the_batch(tmp_path: Path) -> None:
    # Ranks hear of a command a micro-batch later: with four of them still in the same step.
    sets: dict[str, Any] = {"train__fast": "static", "checkpoint__every": 2, "train__accumulate": 4}

    def script() -> Script:
        return Script(
            {1: ["pause release"], 3: ["rollback 2"], 4: ["lr scale 0.5", "clip 0.01"],
             6: ["skip 1"]},
            states={RunState.PAUSED: ["resume"]},
        )  # fmt: skip

    (tmp_path / "one").mkdir()
    run = new_run(tmp_path / "one", "sft", adapter__dropout=0.0, **sets)
    one, two = play(run, script()), played_by_two(tmp_path / "two", "sft", script(), **sets)
    steps = [dict(played.at(StepFinished)) for played in (one, two)]
    for step in range(1, 7):
        alone, together = steps[0][step], steps[1][step]
        assert together.loss == pytest.approx(alone.loss, rel=1e-5)
        assert together.grad_norm == pytest.approx(alone.grad_norm, rel=1e-4)
        assert (together.lr, together.clip) == (alone.lr, alone.clip)
        assert together.tokens == alone.tokens
    commands = [{event.command for event in p.events(CommandApplied)} for p in (one, two)]
    assert commands[0] == commands[1]
    assert len(commands[1]) == 6


def test_where_there_are_no_graphs_it_says_so_or_refuses(tmp_path: Path) -> None:
    auto = played(tmp_path, "auto", "sft", train__fast="auto", train__batch=1)
    assert auto.events(RunStarted)[-1].facts["fast mode"].startswith("off: CUDA graphs need")
    with pytest.raises(ConfigError, match=r"train\.fast: got on, but CUDA graphs need"):
        played(tmp_path, "on", "sft", train__fast="on")
