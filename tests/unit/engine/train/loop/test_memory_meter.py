"""How often a GPU's memory is read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fttui.engine.telemetry.gpu import GpuSample
from fttui.engine.train.loop import memory_meter
from fttui.engine.train.loop.memory_meter import MemoryMeter

Patch = pytest.MonkeyPatch


@pytest.fixture
def peaks(monkeypatch: Patch) -> list[int]:
    """The peaks of memory that a made-up GPU reports, one after another."""
    coming = [1, 2, 3]

    def known(device: Any) -> dict[str, Any]:
        return {"allocated_bytes": {"all": {"peak": coming.pop(0)}},
                "reserved_bytes": {"all": {"current": 9}}}  # fmt: skip

    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", known)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    facts = SimpleNamespace(total_memory=10)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: facts)
    monkeypatch.setattr(memory_meter, "GpuSampler", lambda index: None)
    sampler = SimpleNamespace(last=GpuSample())
    monkeypatch.setattr(memory_meter, "BackgroundSampler", lambda sampled: sampler)
    return coming


def test_every_step_has_its_own_peak(peaks: list[int]) -> None:
    meter = MemoryMeter(torch.device("cuda", 0))
    assert [meter.read().mem_allocated_bytes for _ in range(3)] == [1, 2, 3]


def test_the_first_step_has_no_peak_from_before_it(peaks: list[int], monkeypatch: Patch) -> None:
    """Otherwise the peak of loading a model would be taken for more memory than was planned."""
    peak = [8]

    def known(device: Any) -> dict[str, Any]:
        return {"allocated_bytes": {"all": {"peak": peak[0]}},
                "reserved_bytes": {"all": {"current": 9}}}  # fmt: skip

    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", known)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda _: peak.__setitem__(0, 2))
    meter = MemoryMeter(torch.device("cuda", 0))
    assert meter.read().mem_allocated_bytes == 2


def test_steps_share_a_reading_within_the_given_time(peaks: list[int], monkeypatch: Patch) -> None:
    now = [0.0]
    monkeypatch.setattr(memory_meter, "time", SimpleNamespace(monotonic=lambda: now[0]))
    meter = MemoryMeter(torch.device("cuda", 0), every_s=0.2)
    found = []
    for now[0] in (0.0, 0.1, 0.2, 0.3, 0.41):
        found.append(meter.read().mem_allocated_bytes)
    assert found == [1, 1, 2, 2, 3]
