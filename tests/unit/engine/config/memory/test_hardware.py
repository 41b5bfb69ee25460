from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from fttui.engine.config.memory import hardware
from fttui.engine.config.memory.hardware import (
    HostMemory,
    host_memory,
    probe_hardware,
    visible_indices,
)

UUIDS = ["GPU-aa11", "GPU-ab22", "GPU-cc33"]


@pytest.mark.parametrize(
    ("setting", "visible"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("2,0", [2, 0]),
        (" 1 ", [1]),
        ("-1", []),
        ("0,-1,1", [0]),
        ("1,7,0", [1]),
        ("GPU-cc,0", [2, 0]),
        ("GPU-a", []),
        ("NoDevFiles", []),
    ],
)
def test_visible_devices_follow_cuda(setting, visible):
    assert visible_indices(UUIDS, setting) == visible


def test_probe_sees_the_host():
    found = probe_hardware()
    assert 0 < found.host_free_bytes <= found.host_total_bytes
    assert found.count >= 1
    assert found.kind == ("cuda" if found.devices else "cpu")


@pytest.fixture
def cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hardware, "CGROUP", tmp_path)

    def write(limit: str, used: str, cached: int = 0) -> None:
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        (tmp_path / "memory.current").write_text(f"{used}\n")
        stat = f"active_file 7\ninactive_file {cached}\nslab 9\n"
        (tmp_path / "memory.stat").write_text(stat)

    return write


def test_a_container_limit_below_the_machine_is_what_a_run_may_use(cgroup) -> None:
    cgroup("1000000", "400000")
    assert host_memory() == HostMemory(1_000_000, 600_000)
    found = probe_hardware()
    assert (found.host_total_bytes, found.host_free_bytes) == (1_000_000, 600_000)


def test_files_that_a_container_has_cached_do_not_count(cgroup) -> None:
    cgroup("1000000", "950000", cached=500_000)
    assert host_memory().available_bytes == 550_000


def test_a_container_over_its_limit_has_nothing_left(cgroup) -> None:
    cgroup("1000000", "1400000")
    assert host_memory().available_bytes == 0


@pytest.mark.parametrize("limit", ["max", str(2**62)])
def test_without_a_limit_the_machine_counts(cgroup, limit: str) -> None:
    cgroup(limit, "1")
    assert host_memory().total_bytes == psutil.virtual_memory().total


def test_the_package_loads_no_training_stack():
    code = (
        "import sys; import fttui.engine.config.load, fttui.engine.config.memory.hardware as h;"
        "import fttui.engine.config.step_plan; h.probe_hardware();"
        "print([m for m in ('torch', 'transformers', 'datasets') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(("capability", "bf16"), [((7, 5), False), ((8, 0), True), ((9, 0), True)])
def test_bf16_needs_an_ampere_card(capability: tuple[int, int], bf16: bool) -> None:
    nvml = SimpleNamespace(
        NVMLError=RuntimeError,
        nvmlDeviceGetMemoryInfo=lambda _: SimpleNamespace(total=8, free=5),
        nvmlDeviceGetCudaComputeCapability=lambda _: capability,
        nvmlDeviceGetName=lambda _: "card",
        nvmlDeviceGetMaxPcieLinkGeneration=lambda _: 4,
        nvmlDeviceGetCurrPcieLinkWidth=lambda _: 8,
    )
    found = hardware._describe_device(nvml, None, hardware.HostMemory(64, 32))
    assert found == hardware.Device("card", total_bytes=8, free_bytes=5, bf16=bf16, link=(4, 8))


@pytest.mark.parametrize(("counted", "processors"), [(6, 6), (None, 1)])
def test_without_an_affinity_the_processors_of_the_machine_count(
    monkeypatch: pytest.MonkeyPatch, counted: int | None, processors: int
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: counted)
    assert hardware._processors() == processors
