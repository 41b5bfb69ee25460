"""A whole run in lean and streamed mode: exact state, evaluation, samples, average, all tasks."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from fttui.engine.model import host_embedding, load
from fttui.engine.model.load import LoadedModel, load_model
from fttui.engine.model.streaming.weights import make_streamed
from fttui.engine.protocol.events import EvalFinished, RunStarted, SampleGenerated
from fttui.engine.protocol.states import RunState
from fttui.engine.train import session
from tests.support.matrix import in_part
from tests.support.tiny import tiny_llama
from tests.support.training import Script, new_run, play
from tests.unit.engine.model.streaming.late import LateCopies
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


@pytest.mark.long
@pytest.mark.parametrize("task", ["sft", "contrastive", "dpo", "kto"])
def test_a_streamed_run_is_a_lean_run_to_the_last_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    """Also after a rollback, a pause and a resume, with copies that come late."""
    monkeypatch.setattr(host_embedding, "SLICE_ELEMENTS", 3200)
    monkeypatch.setattr(load, "make_streamed", partial(make_streamed, copies=LateCopies))
    made = {}
    for memory in ("lean", "streamed"):
        folder = tmp_path / memory
        folder.mkdir()
        model = {"model__id": str(tiny_llama(folder, layers=5))}
        made[memory] = new_run(folder, task, **{**LEAN, **model, "train__memory": memory})
    lean = play(made["lean"]).losses()
    script = Script({1: ["eval", "sample alpha"], 3: ["rollback 2"], 5: ["stop"]})
    first = play(made["streamed"], script)
    assert first.outcome.state is RunState.STOPPED
    assert first.events(SampleGenerated)
    again = play(made["streamed"], Script({6: ["pause release", "resume"]}), resume="last")
    assert "slots" in again.events(RunStarted)[-1].facts["memory"]
    assert again.losses() == lean
    assert len(set(lean.values())) > 5, "it learns"


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
