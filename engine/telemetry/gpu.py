"""What NVML says about one GPU. Every reading may be missing; none ever raises."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_UUID_PREFIXES = ("GPU-", "MIG-")
_SENT, _RECEIVED = 0, 1
"""As NVML numbers its PCIe counters."""


@dataclass(frozen=True)
class GpuSample:
    """One reading; None where this card, driver or machine does not tell."""

    util: float | None = None
    """Percent of the last sampling period in which a kernel ran."""
    temp_c: float | None = None
    power_w: float | None = None
    total_bytes: int | None = None
    used_bytes: int | None = None
    """By all processes on the card, not this one alone."""
    pcie_bytes_per_s: float | None = None
    """Both ways together, over some 20 ms."""


class GpuSampler:
    """Reads the GPU that torch calls `cuda:<index>` in this process.

    NVML numbers all cards of the machine by PCI bus. CUDA leaves out what CUDA_VISIBLE_DEVICES
    hides and may sort by speed. So the card is found by its UUID where torch tells it, else by
    its entry in CUDA_VISIBLE_DEVICES, else by the number itself.
    """

    def __init__(self, index: int) -> None:
        self._nvml, self._handle = _open(index)

    @property
    def available(self) -> bool:
        """Whether there is a card to read."""
        return self._handle is not None

    def sample(self) -> GpuSample:
        """Read everything once: some 40 ms, mostly for PCIe, without touching CUDA."""
        if self._handle is None:
            return GpuSample()
        nvml, handle = self._nvml, self._handle
        memory = _asked(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        celsius = getattr(nvml, "NVML_TEMPERATURE_GPU", 0)
        return GpuSample(
            util=_number(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
            temp_c=_number(lambda: nvml.nvmlDeviceGetTemperature(handle, celsius)),
            power_w=_number(lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000),
            total_bytes=None if memory is None else int(memory.total),
            used_bytes=None if memory is None else int(memory.used),
            pcie_bytes_per_s=self._pcie_bytes_per_s(),
        )

    def links(self) -> str:
        """How the card is connected, such as `PCIe 4 × 16, 12 NVLinks`; empty where unknown.

        The generation is the highest that card and slot have: an idle card shows a lower one. The
        width is the present one, which tells of a bad seat.
        """
        if self._handle is None:
            return ""
        nvml, handle = self._nvml, self._handle
        generation = _asked(lambda: nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle))
        width = _asked(lambda: nvml.nvmlDeviceGetCurrPcieLinkWidth(handle))
        most = getattr(nvml, "NVML_NVLINK_MAX_LINKS", 0)
        up = sum(self._nvlink_is_up(number) for number in range(most))
        known = [
            f"PCIe {generation} × {width}" if generation and width else "",
            f"{up} NVLink{'s' if up > 1 else ''}" if up else "",
        ]
        return ", ".join(part for part in known if part)

    def _nvlink_is_up(self, number: int) -> bool:
        state = _asked(lambda: self._nvml.nvmlDeviceGetNvLinkState(self._handle, number))
        return bool(state == 1)

    def _pcie_bytes_per_s(self) -> float | None:
        nvml, handle = self._nvml, self._handle
        sent = _number(lambda: nvml.nvmlDeviceGetPcieThroughput(handle, _SENT) * 1024)
        received = _number(lambda: nvml.nvmlDeviceGetPcieThroughput(handle, _RECEIVED) * 1024)
        return None if sent is None or received is None else sent + received


class BackgroundSampler:
    """Samples in a daemon thread, so that the training thread only picks up the last reading.

    A slow or stuck driver then delays the reading, never a training step.
    """

    def __init__(self, sampler: GpuSampler, period_s: float = 1.0) -> None:
        self._sampler = sampler
        self._period_s = period_s
        self._last = sampler.sample()
        self._stop = threading.Event()
        if sampler.available:
            threading.Thread(target=self._run, name="gpu-sampler", daemon=True).start()

    @property
    def last(self) -> GpuSample:
        """The newest reading; the first was taken by the constructor."""
        return self._last

    def close(self) -> None:
        """Stop sampling; returns at once even if a reading is stuck."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(self._period_s):
            self._last = self._sampler.sample()


def visible_device(index: int, visible: str | None) -> int | str | None:
    """Map a CUDA index to an NVML index or a UUID by CUDA_VISIBLE_DEVICES.

    Args:
        index: As in `cuda:<index>`.
        visible: The variable's value, None where it is not set.

    Returns:
        A number, a UUID (maybe shortened, as CUDA allows), or None where the card is hidden.
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
            break  # CUDA ignores what follows the first entry it does not understand
    return shown[index] if 0 <= index < len(shown) else None


def _open(index: int) -> tuple[Any, Any]:
    """Return NVML and a device handle, both None where there is none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an old package of the same name warns on import
            import pynvml as nvml
        nvml.nvmlInit()
    except Exception:  # noqa: BLE001  # no package, driver or permission: nothing to read
        return None, None
    wanted = _uuid_by_torch(index) or visible_device(index, os.environ.get("CUDA_VISIBLE_DEVICES"))
    return nvml, _asked(lambda: _handle(nvml, wanted))


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
    """Ask torch, where this process has it loaded and CUDA running."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    uuid = _asked(
        lambda: torch.cuda.is_initialized() and torch.cuda.get_device_properties(index).uuid
    )
    return f"GPU-{uuid}" if uuid else None


def _asked(question: Callable[[], Any]) -> Any:
    """Answer None where NVML says not supported, or the card fell off the bus."""
    try:
        return question()
    except Exception:  # noqa: BLE001  # telemetry must never end a run
        return None


def _number(question: Callable[[], Any]) -> float | None:
    answer = _asked(question)
    return None if answer is None else float(answer)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
