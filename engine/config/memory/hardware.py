"""GPUs, memory and CPU cores of this machine, found without loading the training libraries."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import psutil

BF16_CAPABILITY = (8, 0)
"""Lowest compute capability of NVIDIA GPUs with bfloat16 arithmetic (Ampere)."""

CGROUP = Path("/sys/fs/cgroup")
"""Folder of this process's control group (version 2)."""


@dataclass(frozen=True)
class HostMemory:
    """Host memory this process may use, which a container can limit."""

    total_bytes: int
    available_bytes: int


@dataclass(frozen=True)
class Device:
    """One GPU and its memory."""

    name: str
    total_bytes: int
    free_bytes: int
    bf16: bool
    link: tuple[int, int] | None = None
    """Generation of PCI Express and number of lanes of its link to the host, if they are known."""


@dataclass(frozen=True)
class Hardware:
    """The properties of a machine that decide whether a configuration can run on it."""

    kind: Literal["cuda", "cpu"]
    host_total_bytes: int
    host_free_bytes: int
    processors: int = 1
    """CPU cores this process may use."""
    devices: tuple[Device, ...] = ()
    """Visible GPUs in CUDA's order; empty on a CPU."""
    flash_attention: bool = False
    """Whether the flash_attn package is installed."""

    @property
    def count(self) -> int:
        """Number of ranks that can train at the same time: one per GPU, or one per CPU core."""
        return len(self.devices) if self.kind == "cuda" else self.processors

    @property
    def bf16(self) -> bool:
        """Whether every device supports bfloat16; a CPU does, slowly."""
        return all(device.bf16 for device in self.devices)


def probe_hardware() -> Hardware:
    """Describe this machine; only NVIDIA GPUs count, and only if torch was built with CUDA.

    If the driver cannot be asked, the machine counts as one without a GPU.
    """
    memory = host_memory()
    devices = _nvidia_devices(memory) if _torch_has_cuda() else ()
    return Hardware(
        kind="cuda" if devices else "cpu",
        host_total_bytes=memory.total_bytes,
        host_free_bytes=memory.available_bytes,
        processors=_processors(),
        devices=devices,
        flash_attention=find_spec("flash_attn") is not None,
    )


def _processors() -> int:
    """Return the number of processors that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # only Linux has it
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def host_memory() -> HostMemory:
    """Return the memory of the machine, or of the container (cgroup v2) if its limit is lower.

    A container counts its file cache as used, but inactive files are released on demand.
    """
    machine = psutil.virtual_memory()
    limit, used = _number("memory.max"), _number("memory.current")
    if limit is None or used is None or limit >= machine.total:
        return HostMemory(machine.total, machine.available)
    free = limit - used + (_number("memory.stat", "inactive_file") or 0)
    return HostMemory(limit, min(machine.available, max(free, 0)))


def _number(file: str, key: str = "") -> int | None:
    """Read a number of this control group; return None if it is missing or `max`."""
    try:
        text = (CGROUP / file).read_text()
    except OSError:
        return None
    found = re.search(rf"^{key} ?(\d+)$", text, re.MULTILINE)
    return int(found[1]) if found else None


def with_cards(here: Hardware, count: int, free_bytes: int) -> Hardware:
    """Return this machine with `count` GPUs of `free_bytes`, with bf16, instead of its own."""
    card = Device("a GPU", free_bytes, free_bytes, bf16=True)
    return replace(here, kind="cuda", devices=(card,) * count)


def visible_indices(uuids: list[str], setting: str | None) -> list[int]:
    """Return the indices of the devices that `CUDA_VISIBLE_DEVICES` makes visible, in its order.

    None, a variable that is not set, makes all visible. As in CUDA, entries are numbers or prefixes
    of a UUID, and the first entry that matches no device hides itself and all entries after it.
    """
    if setting is None:
        return list(range(len(uuids)))
    chosen: list[int] = []
    for entry in (part.strip() for part in setting.split(",")):
        found = _match_device(entry, uuids)
        if found is None:
            break
        chosen.append(found)
    return chosen


def _match_device(entry: str, uuids: list[str]) -> int | None:
    if entry.isdecimal():
        return int(entry) if int(entry) < len(uuids) else None
    matches = [index for index, uuid in enumerate(uuids) if entry and uuid.startswith(entry)]
    return matches[0] if len(matches) == 1 else None


def _torch_has_cuda() -> bool:
    """Whether torch is installed and was built with CUDA, by its version file.

    Importing torch would take seconds.
    """
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    try:
        text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    except OSError:
        return False
    return re.search(r"^cuda\b[^=\n]*=\s*['\"]", text, re.MULTILINE) is not None


def _nvidia_devices(host: HostMemory) -> tuple[Device, ...]:
    import pynvml  # deferred: not needed without CUDA

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        handles = [
            pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())
        ]
        uuids = [pynvml.nvmlDeviceGetUUID(handle) for handle in handles]
        visible = visible_indices(uuids, os.environ.get("CUDA_VISIBLE_DEVICES"))
        return tuple(_describe_device(pynvml, handles[index], host) for index in visible)
    except pynvml.NVMLError:
        return ()
    finally:
        pynvml.nvmlShutdown()


def _describe_device(nvml: Any, handle: Any, host: HostMemory) -> Device:
    """Describe one device; one that shares the memory of the host gets the figures of the host.

    NVML reports no memory for such a device.
    """
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        total, free = int(memory.total), int(memory.free)
    except nvml.NVMLError:
        total, free = host.total_bytes, host.available_bytes
    capability = tuple(nvml.nvmlDeviceGetCudaComputeCapability(handle))
    name = nvml.nvmlDeviceGetName(handle)
    bf16 = capability >= BF16_CAPABILITY
    return Device(name, total, free, bf16, link=_link(nvml, handle))


def _link(nvml: Any, handle: Any) -> tuple[int, int] | None:
    """Return the fastest generation that card and slot have, and the lanes; None if unknown.

    The generation of the moment does not count: an idle link is slowed down to save power.
    """
    try:
        generation = int(nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle))
        return generation, int(nvml.nvmlDeviceGetCurrPcieLinkWidth(handle))
    except nvml.NVMLError:
        return None
