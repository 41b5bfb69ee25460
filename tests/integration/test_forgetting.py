"""The forgetting meter in a run: it measures and changes nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fttui.engine.errors import ConfigError
from fttui.engine.protocol.events import (
    EvalFinished,
    ForgettingBaseMeasured,
    StepFinished,
)
from tests.support.training import Played, new_run, play

METER = {"forgetting__texts": "general", "forgetting__limit": 6, "forgetting__max_length": 24}


def metrics(played: Played, name: str) -> list[float]:
    return [event.metrics[f"forgetting.{name}"] for event in played.events(EvalFinished)]


def losses(played: Played) -> list[float]:
    return [event.loss_or_nan for event in played.events(StepFinished)]


def test_the_rise_is_above_the_base_model_and_training_is_the_same_to_the_bit(
    tmp_path: Path,
) -> None:
    (tmp_path / "plain").mkdir()
    plain = play(new_run(tmp_path / "plain", "sft", eval__every=4))
    metered = play(new_run(tmp_path, "sft", eval__every=4, eval__at_start=True, **METER))
    assert losses(metered) == losses(plain)
    (base,) = metered.events(ForgettingBaseMeasured)
    assert (base.texts, base.loss) == (6, metrics(metered, "loss")[0])
    rises = metrics(metered, "rise")
    assert rises == [loss - base.loss for loss in metrics(metered, "loss")]
    assert rises[0] == 0 != rises[-1]
    last = metered.events(EvalFinished)[-1].metrics
    assert last["forgetting.balance"] == last["loss"] + rises[-1]


@pytest.mark.long
def test_a_resumed_run_keeps_the_base_that_it_has_measured(tmp_path: Path) -> None:
    run = new_run(tmp_path, "sft", eval__every=4, train__steps=6, **METER)
    play(run)
    run.config.write_text(run.config.read_text().replace("steps: 6", "steps: 8"))
    assert len(play(run, resume="4").events(ForgettingBaseMeasured)) == 1


@pytest.mark.long
def test_without_an_adapter_the_base_is_the_model_before_step_1(tmp_path: Path) -> None:
    run = new_run(tmp_path, "sft", eval__every=4, adapter="none", **METER)
    played = play(run)
    (base,) = played.events(ForgettingBaseMeasured)
    assert metrics(played, "rise")[0] == metrics(played, "loss")[0] - base.loss != 0
    assert len(play(run, resume="4").events(ForgettingBaseMeasured)) == 1
    other = re.sub(r"(?m)^  limit: 6$", "  limit: 5", run.config.read_text())
    run.config.write_text(other)
    with pytest.raises(ConfigError, match="can be measured only before step 1"):
        play(run, resume="4")
