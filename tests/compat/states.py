"""Hashes of the contents of a checkpoint, and a fingerprint of the machine, without engine code.

The commit that made the run folders of `tests/data/cb82d2e` and the present one both use this
module, so it imports nothing from fttui.
"""

from __future__ import annotations

import hashlib
import json
import platform
from pathlib import Path
from typing import Any

import msgspec
import safetensors.torch
import torch

TIMED = ("throughput", "memory", "straggler")
"""Detectors of measured times and memory."""
RESTARTED = ("unstable", "plateau")
"""Parts of the anomaly detector that had another model then; they learn the run anew."""


def tensor_hashes(checkpoint: Path) -> dict[str, str]:
    """Hash every tensor and value of adapter, moving average, optimizer and random generators."""
    found: dict[str, str] = {}
    for file in sorted(checkpoint.glob("*.safetensors")):
        for name, tensor in safetensors.torch.load(file.read_bytes()).items():
            found[f"{file.name}/{name}"] = _hash(tensor)
    for file in sorted(checkpoint.glob("*.pt")):
        _walk(file.name, torch.load(file, map_location="cpu", weights_only=True), found)
    return found


def counters(checkpoint: Path) -> dict[str, Any]:
    """Return the counters, settings and monitor state of a checkpoint as plain JSON values."""
    plain = msgspec.msgpack.decode((checkpoint / "state.msgpack").read_bytes())
    decoded: dict[str, Any] = json.loads(msgspec.json.encode(plain))
    return decoded


def machine() -> dict[str, str]:
    """Return what decides the bits of a loss on a CPU: the torch build and its kernels."""
    return {
        "torch": torch.__version__,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "processor": _processor(),
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _walk(path: str, value: Any, found: dict[str, str]) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            _walk(f"{path}/{key}", item, found)
    elif isinstance(value, list | tuple) and any(isinstance(v, dict | list | tuple) for v in value):
        for index, item in enumerate(value):
            _walk(f"{path}/{index}", item, found)
    elif isinstance(value, list | tuple) and any(torch.is_tensor(v) for v in value):
        for index, item in enumerate(value):
            found[f"{path}/{index}"] = _hash(item)
    else:
        found[path] = _hash(value)


def _hash(value: Any) -> str:
    if torch.is_tensor(value):
        plain = value.detach().contiguous().reshape(-1).view(torch.uint8)
        data = f"{value.dtype} {list(value.shape)} ".encode() + plain.numpy().tobytes()
    else:
        data = repr(list(value) if isinstance(value, tuple) else value).encode()
    return hashlib.blake2b(data, digest_size=8).hexdigest()
