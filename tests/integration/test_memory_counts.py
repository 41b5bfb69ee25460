"""The activations that the estimate counts are those that a step holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fttui.engine.config.load import parse_resolved
from fttui.engine.config.memory.estimate import estimate_memory, read_architecture
from fttui.engine.train.loop.step_loop import StepLoop
from tests.support.storages import StorageCounter
from tests.support.tiny import tiny_llama
from tests.support.training import new_run, play

LENGTH = 192
WHOLE: dict[str, Any] = {"train__activation_checkpointing": "false"}
SOME: dict[str, Any] = {"train__activation_checkpointing": "true", "train__whole_layers": 3}
TOKENS: dict[str, Any] = {"data__special_tokens": "[say, x]", "model__precision": "fp32"}
ALONE: dict[str, Any] = {"contrastive__cross_accumulation": "off"}
AHEAD: dict[str, Any] = {"contrastive__cross_accumulation": "on", "train__accumulate": 4}


def full_row(task: str, number: int) -> dict[str, Any]:
    """A record whose texts are longer than the length."""
    text, other = (" ".join(str(number + i) for i in range(k, k + LENGTH)) for k in (0, 500))
    if task == "contrastive":
        return {"anchor": text, "positive": other}
    return {"prompt": "say", "chosen": text, "rejected": other}


@pytest.mark.parametrize(
    ("task", "sets"),
    [
        pytest.param("contrastive", SOME | ALONE, marks=pytest.mark.long),
        ("contrastive", WHOLE | AHEAD),
        pytest.param("dpo", WHOLE, marks=pytest.mark.long),
        pytest.param("dpo", WHOLE | TOKENS, marks=pytest.mark.long),
    ],
    ids=["some layers whole", "whole and ahead", "whole dpo", "dpo with new tokens"],
)
def test_a_step_holds_what_was_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str, sets: dict[str, Any]
) -> None:
    model = tiny_llama(tmp_path, hidden=64, layers=5)
    data = tmp_path / "full.jsonl"
    data.write_text("".join(json.dumps(full_row(task, n)) + "\n" for n in range(64)))
    common = {"model__id": model, "data__train": data, "data__max_length": LENGTH}
    quiet = {
        "adapter__dropout": 0.0,
        "train__optimizer": "sgd",
        "train__steps": 2,
        "train__batch": 2,
    }
    run = new_run(tmp_path, task, **common, **quiet, **sets)
    counters: list[StorageCounter] = []
    fetch, judge = StepLoop.fetch, StepLoop.check_update

    def fetched(self: StepLoop, micro_batches: int) -> Any:
        counters.append(StorageCounter())
        counters[-1].__enter__()
        return fetch(self, micro_batches)

    def judged(self: StepLoop, clip: Any) -> Any:
        counters[-1].__exit__(None, None, None)
        return judge(self, clip)

    monkeypatch.setattr(StepLoop, "fetch", fetched)
    monkeypatch.setattr(StepLoop, "check_update", judged)
    play(run)
    config = parse_resolved(run.config.read_text())
    planned = estimate_memory(config, read_architecture(model), "cpu")
    moment = planned.activations + planned.logits
    counted = counters[-1].peak_bytes
    assert 0.95 * counted < moment + planned.gradients
    assert moment < 1.1 * counted
