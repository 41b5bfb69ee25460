from __future__ import annotations

import sys
import threading
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from fttui.engine.telemetry.gpu import (
    BackgroundSampler,
    GpuSample,
    GpuSampler,
    MeteredEnergy,
    visible_device,
)


class NotSupported(Exception):
    pass


class FakeNvml(ModuleType):
    """NVML of a machine with two cards; `silent` names the calls that are not supported."""

    NVML_TEMPERATURE_GPU = 0
    NVML_NVLINK_MAX_LINKS = 18
    uuids = ("GPU-aaaa-1", "GPU-bbbb-2")

    def __init__(self, silent: frozenset[str] = frozenset()) -> None:
        super().__init__("pynvml")
        self._silent = silent

    def _say(self, name: str, value: Any) -> Any:
        if name in self._silent:
            raise NotSupported(name)
        return value

    def nvmlInit(self) -> None:
        self._say("init", None)

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index not in (0, 1):
            raise NotSupported(index)
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        raise NotSupported(uuid)

    def nvmlDeviceGetUUID(self, handle: int) -> bytes:
        return self.uuids[handle].encode()

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return self._say("memory", SimpleNamespace(total=100 + handle, used=40 + handle))

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return self._say("util", SimpleNamespace(gpu=70 + handle))

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:
        return self._say("temp", 60 + handle)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return self._say("power", 85_500)

    def nvmlDeviceGetPcieThroughput(self, handle: int, way: int) -> int:
        return self._say("pcie", (30, 12)[way])

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle: int) -> int:
        return self._say("generation", 4)

    def nvmlDeviceGetCurrPcieLinkWidth(self, handle: int) -> int:
        return self._say("width", 8)

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> int:
        if link >= 3:
            raise NotSupported(link)
        return self._say("nvlink", int(link < 2))


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch):
    def _install(nvml: ModuleType | None, visible: str | None = None) -> None:
        monkeypatch.setitem(sys.modules, "pynvml", nvml)
        monkeypatch.setitem(sys.modules, "torch", None)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    return _install


def test_a_card_tells_everything(install) -> None:
    install(FakeNvml())
    assert GpuSampler(0).sample() == GpuSample(
        util=70.0,
        temp_c=60.0,
        power_w=85.5,
        total_bytes=100,
        used_bytes=40,
        pcie_bytes_per_s=42 * 1024,
    )


@pytest.mark.parametrize(
    ("silent", "said"),
    [
        ((), "PCIe 4 × 8, 2 NVLinks"),
        (("nvlink",), "PCIe 4 × 8"),
        (("width",), "2 NVLinks"),
        (("generation", "nvlink"), ""),
        (("init",), ""),
    ],
)
def test_a_card_tells_how_it_is_connected_as_far_as_it_knows(
    install, silent: tuple[str, ...], said: str
) -> None:
    install(FakeNvml(frozenset(silent)))
    assert GpuSampler(0).links() == said


@pytest.mark.parametrize(
    ("silent", "missing"),
    [
        ("memory", "total_bytes"),
        ("util", "util"),
        ("temp", "temp_c"),
        ("power", "power_w"),
        ("pcie", "pcie_bytes_per_s"),
    ],
)
def test_what_a_card_does_not_support_is_none_and_the_rest_is_there(
    install, silent: str, missing: str
) -> None:
    install(FakeNvml(frozenset({silent})))
    sample = GpuSampler(0).sample()
    assert getattr(sample, missing) is None
    assert sum(value is not None for value in vars(sample).values()) >= 3


def test_without_the_package_or_the_driver_nothing_is_read_and_nothing_raised(install) -> None:
    for nvml in (None, FakeNvml(frozenset({"init"}))):
        install(nvml)
        sampler = GpuSampler(0)
        assert not sampler.available
        assert sampler.sample() == GpuSample()


def test_the_visible_devices_decide_which_card_is_read(install) -> None:
    install(FakeNvml(), visible="1,0")
    assert GpuSampler(0).sample().total_bytes == 101
    install(FakeNvml(), visible="GPU-bbbb")
    assert GpuSampler(0).sample().total_bytes == 101
    install(FakeNvml(), visible="1")
    assert GpuSampler(1).sample() == GpuSample(), "a hidden card is not guessed"


def test_torch_names_the_card_where_its_order_differs(install, monkeypatch) -> None:
    install(FakeNvml())
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        get_device_properties=lambda index: SimpleNamespace(uuid="bbbb-2"),
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert GpuSampler(0).sample().total_bytes == 101


@pytest.mark.parametrize(
    ("index", "visible", "expected"),
    [
        (1, None, 1),
        (0, "2,3", 2),
        (1, " 2 , 3 ", 3),
        (2, "2,3", None),
        (0, "", None),
        (0, "-1", None),
        (1, "0,nonsense,2", None),
        (0, "MIG-1234", "MIG-1234"),
    ],
)
def test_reading_cuda_visible_devices(index: int, visible: str | None, expected: object) -> None:
    assert visible_device(index, visible) == expected


class CountingSampler:
    available = True

    def __init__(self) -> None:
        self.calls = 0
        self.third = threading.Event()

    def sample(self) -> GpuSample:
        self.calls += 1
        if self.calls == 3:
            self.third.set()
        return GpuSample(util=float(self.calls))


def test_the_background_thread_keeps_the_reading_fresh_until_closed() -> None:
    sampler = CountingSampler()
    background = BackgroundSampler(sampler, period_s=0.001)  # type: ignore[arg-type]  # a double
    assert background.last.util is not None
    assert sampler.third.wait(timeout=30)
    background.close()
    assert background.last.util is not None
    assert background.last.util >= 2


def test_energy_is_that_of_the_counter_or_of_the_mean_power() -> None:
    counted = MeteredEnergy().after(
        GpuSample(energy_j=1000.0), GpuSample(energy_j=1250.0, power_w=9.0), 2.0
    )
    assert counted == MeteredEnergy(250.0, 2.0)
    by_power = counted.after(GpuSample(power_w=100.0), GpuSample(power_w=200.0), 2.0)
    assert by_power == MeteredEnergy(550.0, 4.0)
    assert by_power.after(GpuSample(), GpuSample(power_w=200.0), 2.0) == by_power


def test_a_counter_that_begins_again_is_replaced_by_the_power() -> None:
    before, now = GpuSample(energy_j=900.0, power_w=50.0), GpuSample(energy_j=3.0, power_w=70.0)
    assert MeteredEnergy().after(before, now, 1.0) == MeteredEnergy(60.0, 1.0)


def test_the_sampler_adds_up_the_energy_between_its_readings() -> None:
    readings = iter([GpuSample(power_w=100.0), GpuSample(power_w=300.0), GpuSample()])
    times = iter([0.0, 2.0, 4.0])
    source: Any = SimpleNamespace(available=False, sample=lambda: next(readings))
    sampler = BackgroundSampler(source, clock=lambda: next(times))
    assert (sampler.reads_power, sampler.energy) == (True, MeteredEnergy())
    sampler.take()
    assert sampler.energy == MeteredEnergy(400.0, 2.0)
    sampler.take()
    assert (sampler.reads_power, sampler.energy) == (False, MeteredEnergy(400.0, 2.0))
