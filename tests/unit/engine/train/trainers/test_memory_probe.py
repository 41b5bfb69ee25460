"""What the memory probe says about a batch that does not fit, and when it can run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from fttui.engine.config.memory.estimate import Architecture, MemoryEstimate, estimate_memory
from fttui.engine.config.schema import RunConfig
from fttui.engine.core.memory_watch import MemoryPlanCheck
from fttui.engine.errors import ModelError
from fttui.engine.model.load import recompute_all
from fttui.engine.run.journal_summary import summarize_journal
from fttui.engine.train.distributed.place import RankPlace
from fttui.engine.train.event_log import EventLog
from fttui.engine.train.session import load
from fttui.engine.train.session_start import SessionStart
from fttui.engine.train.trainers import memory_probe
from tests.support.training import new_run

CONFIG = msgspec.convert(
    {"model": {"id": "m"}, "data": {"train": "d"}, "train": {"steps": 1, "batch": 2}}, RunConfig
)
ARCH = Architecture(896, 24, 14, 2, 64, 4864, 151936, tied=True, name="qwen2")
GIB = 2**30
LAYERS = 2
"""Of the tiny model of the tests."""


@pytest.fixture
def planned() -> MemoryEstimate:
    return estimate_memory(CONFIG, ARCH, "cuda")


@pytest.mark.parametrize(
    ("device", "ranks", "known", "possible"),
    [
        ("cuda", 1, True, True),
        ("cpu", 1, True, False),
        ("cuda", 2, True, False),
        ("cuda", 1, False, False),
    ],
)
def test_a_trial_needs_one_gpu_and_known_examples(
    device: str, ranks: int, known: bool, possible: bool
) -> None:
    trainer = SimpleNamespace(args=SimpleNamespace(device=torch.device(device)))
    assert memory_probe.may_try(trainer, ranks, known) == possible


def test_the_advice_counts_free_memory_and_what_this_process_has_reserved(
    monkeypatch: pytest.MonkeyPatch, planned: MemoryEstimate
) -> None:
    asked: list[int] = []

    def advice(estimate: MemoryEstimate, have: int, config: RunConfig) -> list[str]:
        asked.append(have)
        return ["lower train.batch to 1"]

    free = [GIB, 100 * GIB]
    monkeypatch.setattr(memory_probe, "advice", advice)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free.pop(0), 200 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: GIB // 4)
    cuda = torch.device("cuda")
    text = memory_probe._too_large(CONFIG, planned, cuda)
    assert text.endswith("until it fits:\n  lower train.batch to 1")
    memory_probe._too_large(CONFIG, planned, cuda)
    assert asked == [GIB + GIB // 4, planned.high - 1], "the estimate was too low, whatever is free"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_without_a_plan_the_advice_is_general(device: str, planned: MemoryEstimate) -> None:
    plan = planned if device == "cpu" else None
    text = memory_probe._too_large(CONFIG, plan, torch.device(device))
    assert text.endswith("memory; lower train.batch or data.max_length")


def outcome(
    trainer: Any, planned: MemoryEstimate | None, plan: MemoryPlanCheck | None = None
) -> dict[str, str]:
    examples = [SimpleNamespace(length=n) for n in (3, 9, 1, 7)]
    return memory_probe.try_longest(
        CONFIG,
        trainer,
        examples,
        lambda chosen: {"lengths": [e.length for e in chosen]},
        planned,
        plan,
    )


@pytest.mark.parametrize(
    ("graphs", "said"),
    [
        (False, "2.00 GiB measured on the longest batch"),
        (True, "3.00 GiB measured on the longest batch with its graphs"),
    ],
)
def test_the_longest_examples_are_measured_and_compared_with_the_plan(
    monkeypatch: pytest.MonkeyPatch, planned: MemoryEstimate, graphs: bool, said: str
) -> None:
    tried: list[Any] = []

    def trial(trainer: Any, batch: Any) -> memory_probe.Peak:
        tried.append(batch["lengths"])
        return memory_probe.Peak(2 * GIB, 3 * GIB)

    monkeypatch.setattr(memory_probe, "trial_step", trial)
    trainer = SimpleNamespace(
        args=SimpleNamespace(device=torch.device("cuda")),
        forward=SimpleNamespace(uses_graphs=graphs),
    )
    assert outcome(trainer, None) == {"memory of a step": said}
    text = outcome(trainer, planned)["memory of a step"]
    assert text == f"planned {planned.compared / GIB:.2f} GiB, {said}"
    assert tried == [[9, 7], [9, 7]]


def test_a_failure_of_the_trial_is_told_and_no_reason_not_to_train(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: Any) -> memory_probe.Peak:
        raise RuntimeError("no kernel\nfor this")

    monkeypatch.setattr(memory_probe, "trial_step", broken)
    trainer = SimpleNamespace(args=SimpleNamespace(device=torch.device("cpu")))
    assert outcome(trainer, None) == {"memory of a step": "not measured: no kernel"}

    def exhausted(*_: Any) -> memory_probe.Peak:
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(memory_probe, "trial_step", exhausted)
    monkeypatch.setattr(memory_probe, "recompute_all", lambda _: 0)
    trainer.model = None
    with pytest.raises(ModelError, match=r"does not fit.*lower train\.batch"):
        outcome(trainer, None)


def test_a_batch_that_does_not_fit_is_tried_again_with_all_layers_recomputed(
    monkeypatch: pytest.MonkeyPatch, planned: MemoryEstimate
) -> None:
    done: list[str] = []
    keeping = [7, 0]

    def trial(*_: Any) -> memory_probe.Peak:
        done.append("trial")
        if len(done) == 1:
            raise torch.OutOfMemoryError("no memory")
        return memory_probe.Peak(2 * GIB, 3 * GIB)

    monkeypatch.setattr(memory_probe, "trial_step", trial)
    monkeypatch.setattr(memory_probe, "recompute_all", lambda _: keeping.pop(0))
    trainer = SimpleNamespace(
        args=SimpleNamespace(device=torch.device("cuda")),
        forward=SimpleNamespace(uses_graphs=False, release=lambda: done.append("released")),
        model=None,
    )
    plan = MemoryPlanCheck(GIB, "reserved")
    text = outcome(trainer, planned, plan)["memory of a step"]
    assert done == ["trial", "released", "trial"]
    assert text.endswith("while 7 layers kept their activations, so they are recomputed")
    assert (plan.planned_bytes, plan.measure) == (2 * GIB, "allocated")


@pytest.mark.parametrize("train", [{"activation_checkpointing": "false"}, {"whole_layers": 2}])
def test_layers_that_are_recomputed_later_give_the_same_gradients(
    tmp_path: Path, train: dict[str, Any]
) -> None:
    sets = {"activation_checkpointing": "true", **train}
    run = new_run(tmp_path, "sft", **{f"train__{key}": value for key, value in sets.items()})
    start = SessionStart(run, summarize_journal(()), None, 0)
    model = load(start, RankPlace(0, 1, torch.device("cpu")), EventLog(None)).loaded.model
    ids = torch.arange(12)[None]

    def gradients() -> list[torch.Tensor]:
        model.zero_grad()
        torch.manual_seed(0)
        model(input_ids=ids, labels=ids).loss.backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    before = gradients()
    assert recompute_all(model) == (2 if "whole_layers" in train else LAYERS)
    assert recompute_all(model) == 0
    assert all(map(torch.equal, before, gradients()))
