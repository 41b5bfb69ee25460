"""Which activations are kept and which are computed again changes no number of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fttui.engine.protocol.events import RunStarted
from tests.support.matrix import in_part
from tests.support.training import new_run, play

WAYS: dict[str, dict[str, Any]] = {
    "on": {"train__activation_checkpointing": "true"},
    "on, except in the last layer": {
        "train__activation_checkpointing": "true",
        "train__whole_layers": 1,
    },
    "off": {"train__activation_checkpointing": "false"},
}


@pytest.mark.parametrize(
    ("task", "fast"),
    in_part(
        [("sft", "off"), ("sft", "static"), ("contrastive", "off")],
        [("sft", "static"), ("contrastive", "off")],
    ),
)
def test_losses_are_the_same_whichever_layers_are_whole(
    tmp_path: Path, task: str, fast: str
) -> None:
    found = []
    for number, (said, sets) in enumerate(WAYS.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        common = {"train__steps": 3, "train__warmup": 0, "train__fast": f'"{fast}"'}
        played = play(new_run(folder, task, **common, **sets))
        facts = played.events(RunStarted)[-1].facts
        assert facts["activation checkpointing"] == said
        found.append(played.losses())
    assert len(set(found[0].values())) == 3, "it learns, with dropout"
    assert found[0] == found[1] == found[2]
