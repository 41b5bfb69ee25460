"""Chooses the device on which a benchmark runs, so that it takes no memory that training needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from shlex import quote

from ..errors import ConfigError, ModelError

_ACTIVATIONS_BYTES = 3 * 2**29
"""Memory besides the weights: the context of CUDA, activations and logits of a batch."""
_SHARE = 1.1
_IDLE_BYTES = 2**30
"""Memory that the driver and a desktop may take on a GPU that nobody computes on."""


@dataclass(frozen=True)
class Gpu:
    """A GPU that this process can use."""

    index: int
    free_bytes: int | None
    """Free memory, over all processes; None if it cannot be read."""
    used_bytes: int | None = None

    @property
    def in_use(self) -> bool:
        """Whether a process computes on it; assumed where that cannot be read."""
        return self.used_bytes is None or self.used_bytes > _IDLE_BYTES


def chosen_device(
    wanted: str, gpus: Sequence[Gpu], weight_bytes: int | None, run: str, *, live: bool
) -> str:
    """Return the device to measure on, such as `cuda:1` or `cpu`.

    `auto` is the GPU with the most free memory if the model fits into it, else the CPU. While the
    run trains, only GPUs that nobody uses count, because its own memory may still grow.

    Args:
        wanted: auto, cpu, cuda or cuda:N.
        gpus: the GPUs of this process.
        weight_bytes: size of the weights; None if it is not known.
        run: name of the run, for the error.
        live: whether the run trains.

    Raises:
        ConfigError: there is no such device.
        ModelError: the free memory of the wanted GPU does not suffice.
    """
    if wanted == "cpu" or (wanted == "auto" and not gpus):
        return "cpu"
    if wanted == "auto":
        usable = [g for g in gpus if _fits(g, weight_bytes) and not (live and g.in_use)]
        roomiest = max(usable, key=lambda gpu: gpu.free_bytes or 0, default=None)
        return f"cuda:{roomiest.index}" if roomiest else "cpu"
    gpu = _named(wanted, gpus)
    if not _fits(gpu, weight_bytes):
        raise ModelError(_too_small(gpu, weight_bytes or 0, run))
    return f"cuda:{gpu.index}"


def _named(wanted: str, gpus: Sequence[Gpu]) -> Gpu:
    kind, _, number = wanted.partition(":")
    found = [gpu for gpu in gpus if kind == "cuda" and (number or "0") == f"{gpu.index}"]
    if not found:
        names = ", ".join(["auto", "cpu", *(f"cuda:{gpu.index}" for gpu in gpus)])
        raise ConfigError(f"--device: got {wanted}, expected one of: {names}")
    return found[0]


def _fits(gpu: Gpu, weight_bytes: int | None) -> bool:
    if gpu.free_bytes is None or weight_bytes is None:
        return True
    return gpu.free_bytes >= _needed(weight_bytes)


def _needed(weight_bytes: int) -> float:
    return _SHARE * weight_bytes + _ACTIVATIONS_BYTES


def _too_small(gpu: Gpu, weight_bytes: int, run: str) -> str:
    free, need = (gpu.free_bytes or 0) / 2**30, _needed(weight_bytes) / 2**30
    return (
        f"cuda:{gpu.index} has {free:.1f} GiB of free memory, and the benchmark needs about "
        f"{need:.1f} GiB; use another GPU or --device cpu, or free the memory while the run is "
        f"paused, with: fttui ctl {quote(run)} pause release"
    )
