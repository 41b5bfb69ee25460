"""The order in which the Hugging Face loop calls the step hooks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from fttui.engine.train.loop import hf_bridge
from fttui.engine.train.loop.step_loop import StepLoop
from tests.support.training import new_run, play

ONE_MICRO_BATCH = ["may_continue", "may_backward", "record_loss"]
ONE_STEP = [
    "begin_step",
    "fetch",
    *ONE_MICRO_BATCH,
    *ONE_MICRO_BATCH,
    "check_update",
    "may_update",
    "gated",
    "optimizer_stepped",
    "end_step",
]


@pytest.mark.parametrize("task", ["sft", "contrastive", "dpo"])
def test_a_step_calls_the_hooks_in_this_order(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []

    def recording(name: str) -> Any:
        hook = getattr(StepLoop, name)

        def record(self: StepLoop, *args: Any, **kwargs: Any) -> Any:
            called.append(name)
            return hook(self, *args, **kwargs)

        return record

    for name in ["begin_training", *dict.fromkeys(ONE_STEP)]:
        monkeypatch.setattr(StepLoop, name, recording(name))
    play(new_run(tmp_path, task, train__steps=2, eval__every=0, checkpoint__every=0))
    assert called[0] == "begin_training"
    # Passes without gradients over the micro-batches of a step come before its first backward pass.
    ahead = [] if task == "sft" else ["may_continue"] * 2
    step = [*ONE_STEP[:2], *ahead, *ONE_STEP[2:]]
    # `optimizer_stepped` asks `may_update` again.
    step.insert(step.index("end_step"), "may_update")
    assert called[1:] == [*step, *step]


def test_the_table_in_the_bridge_names_every_hook_in_order() -> None:
    table = re.findall(r"`(\w+)`", hf_bridge.__doc__ or "")
    named = [name for name in table if name in ONE_STEP]
    assert list(dict.fromkeys(named)) == [
        *("begin_step", "fetch", "may_continue", "may_backward", "record_loss"),
        *("check_update", "may_update", "gated", "optimizer_stepped", "end_step"),
    ]
