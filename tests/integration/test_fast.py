"""Static shapes inside the real loop: the same training, under the same control.

Graphs replay what runs here directly; `tests/bench/gpu_exact.py` repeats this with them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fttui.engine.errors import ConfigError
from fttui.engine.protocol.events import CommandApplied, RunStarted
from fttui.engine.protocol.states import RunState
from fttui.engine.run.layout import RunDirectory
from fttui.engine.train.device import Place
from fttui.engine.train.session import Outcome
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
        ("sft", {"data__max_length": 96, "contrastive__kind": "simctg"}),
        ("sft", {"data__packing": "true", "data__max_length": 96, "train__batch": 2}),
        ("contrastive", {}),
        ("sft", {"train__memory": "lean", "model__quantize": "nf4"}),
    ],
    ids=["sft", "packed", "contrastive", "lean"],
)
def test_the_same_losses_as_the_ordinary_way(tmp_path: Path, task: str, sets: Any) -> None:
    same: dict[str, Any] = {"adapter__dropout": 0.0, **sets}
    ordinary = played(tmp_path, "ordinary", task, train__fast="off", **same).losses()
    static = played(tmp_path, "static", task, train__fast="static", **same)
    assert static.losses() == pytest.approx(ordinary, rel=2e-6)
    assert static.events(RunStarted)[-1].facts["fast mode"] == "static shapes"


def test_it_goes_back_and_takes_every_setting_as_ever(tmp_path: Path) -> None:
    sets: dict[str, Any] = {"train__fast": "static", "checkpoint__every": 2}
    straight = played(tmp_path, "straight", "sft", **sets).losses()
    script = Script({1: ["pause release"], 3: ["rollback 2"]}, states={RunState.PAUSED: ["resume"]})
    back = played(tmp_path, "back", "sft", script, **sets).losses()
    assert back == straight
    script = Script({2: ["lr scale 0.5", "clip 0.01", "skip 1"]})
    steered = played(tmp_path, "steered", "sft", script, **sets)
    assert len(steered.events(CommandApplied)) == 3
    assert steered.losses()[2] == straight[2]
    assert steered.losses()[4] != straight[4]


def play_as_rank(place: Place, run: RunDirectory) -> None:
    play(run, place=place)


def losses_of_two_ranks(folder: Path, fast: str) -> dict[int, float]:
    folder.mkdir()
    sets = {"train__fast": fast, "adapter__dropout": 0.0, "train__batch": 2, "train__devices": 2}
    run = new_run(folder, "contrastive", train__steps=3, **sets)
    assert in_ranks(2, play_as_rank, run) == [0, 0]
    return Played(run, Outcome(RunState.FINISHED, None), read_records(run)).losses()


def test_two_ranks_average_their_gradients(tmp_path: Path) -> None:
    ordinary = losses_of_two_ranks(tmp_path / "ordinary", "off")
    static = losses_of_two_ranks(tmp_path / "static", "static")
    assert static == pytest.approx(ordinary, rel=2e-6)


def test_where_there_are_no_graphs_it_says_so_or_refuses(tmp_path: Path) -> None:
    auto = played(tmp_path, "auto", "sft", train__fast="auto", train__batch=1)
    assert auto.events(RunStarted)[-1].facts["fast mode"].startswith("off: there are CUDA graphs")
    with pytest.raises(ConfigError, match=r"train\.fast: on is not possible"):
        played(tmp_path, "on", "sft", train__fast="on")
