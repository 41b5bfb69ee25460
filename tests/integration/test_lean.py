"""A whole run in lean mode: exact state, evaluation, samples, average and both tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fttui.engine.model import lean
from fttui.engine.protocol.events import EvalFinished, RunStarted, SampleGenerated
from fttui.engine.protocol.states import RunState
from tests.support.training import Script, new_run, play

LEAN: dict[str, Any] = {
    "model__quantize": "nf4",
    "train__memory": "lean",
    "train__activations": "host",
    "train__ema": 0.9,
    "checkpoint__every": 2,
}


@pytest.mark.parametrize("task", ["sft", "contrastive"])
def test_a_lean_run_is_steered_as_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    monkeypatch.setattr(lean, "SLICE_ELEMENTS", 3200)
    paths = [tmp_path / name for name in ("straight", "back")]
    for path in paths:
        path.mkdir()
    runs = [new_run(path, task, **LEAN, train__steps=5) for path in paths]
    straight = play(runs[0], Script({2: ["eval", "sample alpha"]}))
    back = play(runs[1], Script({3: ["pause release", "resume"], 4: ["rollback 2"]}))
    (started,) = straight.events(RunStarted)
    assert "in 3 slices" in started.facts["memory"]
    assert started.facts["activation checkpointing"] == "on, kept on the host"
    assert straight.outcome.state is back.outcome.state is RunState.FINISHED
    assert len(straight.losses()) == 5
    assert len(set(straight.losses().values())) == 5, "it learns"
    after = {step: loss for step, loss in straight.losses().items() if step > 2}
    assert back.losses(timeline=2) == after
    (sample,) = straight.events(SampleGenerated)
    assert sample.prompt == "alpha"
    assert straight.events(EvalFinished)[0].metrics["loss"] > 0
