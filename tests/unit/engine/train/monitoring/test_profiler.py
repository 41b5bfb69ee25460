"""Events of a GPU, which a CPU never sees, told apart."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import msgspec
import torch
from torch import nn

from fttui.engine.config.schema import RunConfig
from fttui.engine.core.profile import Activity
from fttui.engine.protocol.events import StepsProfiled
from fttui.engine.train.monitoring.profiler import (
    StepProfiler,
    recording_of,
    useful_flops_per_token,
)

from .parts import LogAtStep


@dataclass
class Event:
    """As the profiler hands one out."""

    said: str
    began: int
    took: int
    number: int = 0
    kind: str = "CPU"

    def name(self) -> str:
        return self.said

    def start_ns(self) -> int:
        return self.began

    def duration_ns(self) -> int:
        return self.took

    def correlation_id(self) -> int:
        return self.number

    def device_type(self) -> SimpleNamespace:
        return SimpleNamespace(name=self.kind)

    def start_thread_id(self) -> int:
        return 1

    def device_resource_id(self) -> int:
        return 7


def test_kernels_know_when_they_were_asked_for_and_named_stretches_are_none() -> None:
    found = recording_of(
        [
            Event("fttui.step", 0, 100),
            Event("Optimizer.step#AdamW.step", 60, 20),
            Event("aten::mm", 9, 4, number=5),
            Event("cudaLaunchKernel", 10, 2, number=5),
            Event("cudaGraphLaunch", 30, 2, number=6),
            Event("fttui.step", 12, 70, kind="CUDA"),
            Event("Optimizer.step#AdamW.step", 64, 20, kind="CUDA"),
            Event("nvjet_gemm", 40, 5, number=5, kind="CUDA"),
            Event("an empty kernel", 46, 0, number=5, kind="CUDA"),
            Event("first of the graph", 50, 5, number=6, kind="CUDA"),
            Event("second of the graph", 55, 5, number=6, kind="CUDA"),
        ]
    )
    assert found.spans == [Activity("step", 0, 100, 1)]
    assert found.operations == [Activity("aten::mm", 9, 13, 1)]
    assert [(k.name, k.began_ns, k.thread) for k in found.kernels] == [
        ("nvjet_gemm", 10, 7),
        ("first of the graph", 30, 7),
        ("second of the graph", 30, 7),
    ]


def test_useful_operations_count_forward_and_gradients_of_every_product() -> None:
    """Frozen weights need 4 operations per weight and token, trained weights 6."""
    model = nn.Sequential(nn.Linear(3, 5, bias=False), nn.Linear(5, 2, bias=False))
    model[0].weight.requires_grad_(False)
    assert useful_flops_per_token(model, 8) == 4 * 15 + 6 * 10
    text = SimpleNamespace(num_hidden_layers=2, hidden_size=7)
    model.config = SimpleNamespace(get_text_config=lambda: text)  # type: ignore[assignment]  # as read
    assert useful_flops_per_token(model, 8) == 4 * 15 + 6 * 10 + 3 * 2 * 4 * 7 * 8 / 2


def test_a_profile_has_as_many_steps_as_asked_for_without_the_dropped_ones(tmp_path: Path) -> None:
    sections = {"model": {"id": "m"}, "data": {"train": "d"}, "train": {"steps": 5}}
    config = msgspec.convert(sections, RunConfig)
    log = LogAtStep()
    model = nn.Linear(4, 4)
    done: list[int] = []
    concluded: list[int] = []
    profiler = StepProfiler(
        config, model, torch.device("cpu"), log.log, tmp_path, on_done=lambda: done.append(log.at)
    )
    profiler.ask(2, after=1)
    for step, counted in enumerate([True, True, False, True, True], start=1):
        log.at = step
        profiler.begin_step()
        model(torch.ones(1, 4)).sum().backward()
        profiler.end_step(10, counted=counted, conclude=lambda: concluded.append(log.at))
    (found,) = log.of(StepsProfiled)
    assert (found.steps, found.trace) == (2, "step-5-rank-0.json.gz")
    assert done == concluded == [5]
    assert (tmp_path / found.trace).exists()
