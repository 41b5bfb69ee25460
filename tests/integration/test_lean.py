"""A whole run in lean mode: exact state, evaluation, samples, average and both tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from fttui.engine.model import host_embedding
from fttui.engine.model.load import LoadedModel, load_model
from fttui.engine.protocol.events import EvalFinished, RunStarted, SampleGenerated
from fttui.engine.protocol.states import RunState
from fttui.engine.train import session
from tests.support.matrix import in_part
from tests.support.training import Script, new_run, play
from tests.unit.engine.model.test_host_embedding import with_head_of

LEAN: dict[str, Any] = {
    "model__quantize": "nf4",
    "train__memory": "lean",
    "train__activation_checkpointing": "true",
    "train__activations": "host",
    "train__ema": 0.9,
    "checkpoint__every": 2,
}


@pytest.mark.parametrize("task", in_part(["sft", "contrastive"], ["sft"]))
def test_a_lean_run_is_steered_as_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    monkeypatch.setattr(host_embedding, "SLICE_ELEMENTS", 3200)
    paths = [tmp_path / name for name in ("straight", "back")]
    for path in paths:
        path.mkdir()
    runs = [new_run(path, task, **LEAN, train__steps=5) for path in paths]
    straight = play(runs[0], Script({2: ["eval", "sample alpha"]}))
    back = play(runs[1], Script({3: ["pause release", "resume"], 4: ["rollback 2"]}))
    (started,) = straight.events(RunStarted)
    assert "in 3 slices" in started.facts["memory"]
    assert started.facts["activation checkpointing"] == "on, inputs of layers kept on the host"
    assert straight.outcome.state is back.outcome.state is RunState.FINISHED
    assert len(straight.losses()) == 5
    assert len(set(straight.losses().values())) == 5, "it learns"
    after = {step: loss for step, loss in straight.losses().items() if step > 2}
    assert back.losses(timeline=2) == after
    (sample,) = straight.events(SampleGenerated)
    assert sample.prompt == "alpha"
    assert straight.events(EvalFinished)[0].metrics["loss"] > 0


@pytest.mark.parametrize("task", in_part(["contrastive", "dpo", "kto"], ["contrastive"]))
def test_every_task_learns_as_the_plain_model_with_the_same_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    """Losses after updates, so the gradients are the same too."""
    monkeypatch.setattr(host_embedding, "SLICE_ELEMENTS", 3200)

    def with_a_lean_head(config: Any, *others: Any) -> LoadedModel:
        loaded = load_model(config, *others)
        if config.train.memory != "lean":
            train = replace(config.train, memory="lean")
            other = load_model(replace(config, train=train), *others)
            with_head_of(loaded.model.get_base_model(), other.model.get_base_model())
        return loaded

    monkeypatch.setattr(session, "load_model", with_a_lean_head)
    found = []
    for memory in ("lean", "plain"):
        folder = tmp_path / memory
        folder.mkdir()
        sets = {"model__quantize": "nf4", "train__memory": memory, "train__steps": 4}
        more: dict[str, Any] = {"adapter__dropout": 0.0, "train__warmup": 0}
        found.append(play(new_run(folder, task, **sets, **more)).losses())
    assert len(set(found[1].values())) == 4, "it learns"
    assert found[0] == pytest.approx(found[1], rel=1e-3)
