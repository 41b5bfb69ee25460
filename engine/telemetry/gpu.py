"""Reads the sensors of one GPU by NVML, directly or in a background thread.

A reading that the card, driver or machine does not support is None; no function raises.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

_UUID_PREFIXES = ("GPU-", "MIG-")
_SENT, _RECEIVED = 0, 1
"""NVML's numbers of its PCIe counters."""


@dataclass(frozen=True)
class GpuSample:
    """One reading of the sensors; a value is None if it is not supported."""

    util: float | None = None
    """Percent of the last sampling period in which a kernel ran."""
    temp_c: float | None = None
    power_w: float | None = None
    total_bytes: int | None = None
    used_bytes: int | None = None
    """Memory used by all processes on the card, not only this one."""
    pcie_bytes_per_s: float | None = None
    """Bytes sent and received, measured over about 20 ms."""
    energy_j: float | None = None
    """Energy of the card since its driver was loaded, which cards since Volta count."""


class GpuSampler:
    """Reads the GPU that torch calls `cuda:<index>` in this process.

    NVML numbers all cards of the machine by PCI bus. CUDA omits cards that CUDA_VISIBLE_DEVICES
    hides, and may sort by speed. So the card is found by its UUID if torch knows it, else by its
    entry in CUDA_VISIBLE_DEVICES, else by the number.
    """

    def __init__(self, index: int) -> None:
        self._nvml, self._handle = _open(index)

    @property
    def available(self) -> bool:
        """Whether the card was found."""
        return self._handle is not None

    def sample(self) -> GpuSample:
        """Read all sensors, in about 40 ms (most of it for PCIe) and without a CUDA call.

        Every value is None if the card was not found.
        """
        if self._handle is None:
            return GpuSample()
        nvml, handle = self._nvml, self._handle
        memory = _try_call(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        celsius = getattr(nvml, "NVML_TEMPERATURE_GPU", 0)
        return GpuSample(
            util=_number(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
            temp_c=_number(lambda: nvml.nvmlDeviceGetTemperature(handle, celsius)),
            power_w=_number(lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000),
            total_bytes=None if memory is None else int(memory.total),
            used_bytes=None if memory is None else int(memory.used),
            pcie_bytes_per_s=self._pcie_bytes_per_s(),
            energy_j=_number(lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000),
        )

    def links(self) -> str:
        """Return the connections of the card, such as `PCIe 4 × 16, 12 NVLinks`; empty if unknown.

        The generation is the highest one of card and slot, because an idle card reports a lower
        one. The width is the current one, which reveals a badly seated card.
        """
        if self._handle is None:
            return ""
        nvml, handle = self._nvml, self._handle
        generation = _try_call(lambda: nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle))
        width = _try_call(lambda: nvml.nvmlDeviceGetCurrPcieLinkWidth(handle))
        most = getattr(nvml, "NVML_NVLINK_MAX_LINKS", 0)
        up = sum(self._nvlink_is_up(number) for number in range(most))
        known = [
            f"PCIe {generation} × {width}" if generation and width else "",
            f"{up} NVLink{'s' if up > 1 else ''}" if up else "",
        ]
        return ", ".join(part for part in known if part)

    def _nvlink_is_up(self, number: int) -> bool:
        state = _try_call(lambda: self._nvml.nvmlDeviceGetNvLinkState(self._handle, number))
        return bool(state == 1)

    def _pcie_bytes_per_s(self) -> float | None:
        nvml, handle = self._nvml, self._handle
        sent = _number(lambda: nvml.nvmlDeviceGetPcieThroughput(handle, _SENT) * 1024)
        received = _number(lambda: nvml.nvmlDeviceGetPcieThroughput(handle, _RECEIVED) * 1024)
        return None if sent is None or received is None else sent + received


class MeteredEnergy(NamedTuple):
    """The energy of a card since it was first sampled."""

    joules: float = 0.0
    seconds: float = 0.0
    """Seconds in which it could be measured; 0 if it never could."""

    def after(self, before: GpuSample, now: GpuSample, seconds: float) -> MeteredEnergy:
        """Return the energy after another sample, `seconds` after the one before.

        The card's own counter is exact; without one, the mean of both powers counts for the time.
        """
        if before.energy_j is not None and now.energy_j is not None:
            used = now.energy_j - before.energy_j
            if used >= 0:  # a driver that was loaded again counts from 0
                return MeteredEnergy(self.joules + used, self.seconds + seconds)
        if before.power_w is None or now.power_w is None:
            return self
        used = seconds * (before.power_w + now.power_w) / 2
        return MeteredEnergy(self.joules + used, self.seconds + seconds)


class BackgroundSampler:
    """Reads the sensors in a daemon thread, so the training thread only takes the last reading.

    A slow or stuck driver then delays a reading, but never an optimizer step.
    """

    def __init__(
        self,
        sampler: GpuSampler,
        period_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sampler = sampler
        self._period_s = period_s
        self._clock = clock
        self._last = sampler.sample()
        self._sampled_at = clock()
        self._energy = MeteredEnergy()
        self._stop = threading.Event()
        if sampler.available:
            threading.Thread(target=self._run, name="gpu-sampler", daemon=True).start()

    @property
    def last(self) -> GpuSample:
        """The newest reading; the first was taken by the constructor."""
        return self._last

    @property
    def energy(self) -> MeteredEnergy:
        """The energy from the first reading to the newest one."""
        return self._energy

    @property
    def reads_power(self) -> bool:
        """Whether the newest reading has the power or the energy of the card."""
        return self._last.power_w is not None or self._last.energy_j is not None

    def close(self) -> None:
        """Stop sampling; return at once even if a reading is stuck."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(self._period_s):
            self.take()

    def take(self) -> None:
        """Read the sensors once; the thread calls it in every period."""
        sample, now = self._sampler.sample(), self._clock()
        self._energy = self._energy.after(self._last, sample, now - self._sampled_at)
        self._last, self._sampled_at = sample, now


def visible_device(index: int, visible: str | None) -> int | str | None:
    """Map a CUDA index to an NVML index or a UUID by CUDA_VISIBLE_DEVICES.

    Args:
        index: As in `cuda:<index>`.
        visible: The value of the variable; None if it is not set.

    Returns:
        A number, a UUID (possibly shortened, as CUDA allows), or None if the card is hidden.
    """
    if visible is None:
        return index
    shown: list[int | str] = []
    for entry in (part.strip() for part in visible.split(",")):
        if entry.startswith(_UUID_PREFIXES):
            shown.append(entry)
        elif entry.isdecimal():
            shown.append(int(entry))
        else:
            break  # CUDA ignores the entries after the first invalid one
    return shown[index] if 0 <= index < len(shown) else None


def _open(index: int) -> tuple[Any, Any]:
    """Return NVML and a device handle; both None without NVML, the handle None without the card."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an old package of the same name warns on import
            import pynvml as nvml
        nvml.nvmlInit()
    except Exception:  # noqa: BLE001  # no package, driver or permission: nothing to read
        return None, None
    wanted = _uuid_by_torch(index) or visible_device(index, os.environ.get("CUDA_VISIBLE_DEVICES"))
    return nvml, _try_call(lambda: _handle(nvml, wanted))


def _handle(nvml: Any, wanted: int | str | None) -> Any:
    if wanted is None:
        return None
    if isinstance(wanted, int):
        return nvml.nvmlDeviceGetHandleByIndex(wanted)
    for position in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(position)
        if _text(nvml.nvmlDeviceGetUUID(handle)).startswith(wanted):
            return handle
    return nvml.nvmlDeviceGetHandleByUUID(wanted)


def _uuid_by_torch(index: int) -> str | None:
    """Return the UUID that torch reports, with the prefix `GPU-`.

    None if torch is not loaded, CUDA is not initialized, or this torch reports none.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    uuid = _try_call(
        lambda: torch.cuda.is_initialized() and torch.cuda.get_device_properties(index).uuid
    )
    return f"GPU-{uuid}" if uuid else None


def _try_call(call: Callable[[], Any]) -> Any:
    """Return the result of an NVML call; None if it fails, for example if it is not supported."""
    try:
        return call()
    except Exception:  # noqa: BLE001  # telemetry must never end a run
        return None


def _number(call: Callable[[], Any]) -> float | None:
    answer = _try_call(call)
    return None if answer is None else float(answer)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
