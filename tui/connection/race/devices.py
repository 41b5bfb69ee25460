"""The devices on which runs train side by side, one run on each."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from fttui.engine.errors import ConfigError

from ...view_model.race.race_state import CPU

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_THREADS = "OMP_NUM_THREADS"
_starting = threading.Lock()
"""Held while a run starts, because the variables count for the whole process."""


@contextmanager
def only_visible(device: str, threads: int | None = None) -> Iterator[None]:
    """Let processes that are started in this context see one device alone.

    Args:
        device: the number of a GPU, as it is now visible, or `cpu`.
        threads: their threads of the processor; None leaves the number to torch.
    """
    with _starting:
        before = {name: os.environ.get(name) for name in (_VISIBLE, _THREADS)}
        os.environ[_VISIBLE] = _entry(device, before[_VISIBLE])
        if threads is not None:
            os.environ[_THREADS] = str(threads)
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name, None)
                os.environ |= {} if value is None else {name: value}


def threads_of(devices: Sequence[str], processors: int) -> int | None:
    """Return the threads of each run on the processor, of which several would block each other.

    None with one such run, or if `OMP_NUM_THREADS` is set. Runs on GPUs need few.
    """
    runs = devices.count(CPU)
    if runs < 2 or os.environ.get(_THREADS):
        return None
    return max(1, processors // runs)


def _entry(device: str, visible: str | None) -> str:
    if device == CPU:
        return ""
    if visible is None:
        return device
    known = [part.strip() for part in visible.split(",")]
    return known[int(device)] if int(device) < len(known) else ""


def parse_devices(text: str | None, devices_per_run: int, what: str = "trial") -> tuple[str, ...]:
    """Return the devices in a text such as `0,1`; empty without a text.

    Args:
        text: numbers of GPUs, or `cpu` for each run that trains on the processor.
        devices_per_run: `train.devices` of the configuration.
        what: what trains on a device, for errors: a trial or a variant.

    Raises:
        ConfigError: the text is not valid, or a run needs several devices.
    """
    if text is None:
        return ()
    found = tuple(part.strip() for part in text.split(","))
    wrong = [one for one in found if one != CPU and not (one.isascii() and one.isdigit())]
    if wrong:
        raise ConfigError(f"--devices {text}: got {wrong[0]!r}, expected GPUs such as 0,1, or cpu")
    twice = [one for one in found if one != CPU and found.count(one) > 1]
    if twice:
        raise ConfigError(
            f"--devices {text}: GPU {twice[0]} is there twice; two {what}s would share its memory"
        )
    if devices_per_run != 1:
        raise ConfigError(
            f"--devices {text}: a {what} trains on one device, but train.devices is "
            f"{devices_per_run}; leave out --devices, or set train.devices=1"
        )
    return found


def require_present(devices: Sequence[str]) -> None:
    """Check that the GPUs are there, because a run without one trains on the processor.

    Raises:
        ConfigError: one of them is not there.
    """
    from fttui.engine.config.memory.hardware import probe_hardware

    for device in devices:
        with only_visible(device):
            missing = device != CPU and not probe_hardware().devices
        if missing:
            raise ConfigError(
                f"--devices {','.join(devices)}: there is no GPU {device}; fttui doctor lists them"
            )
