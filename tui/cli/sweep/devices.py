"""The devices on which the trials of a sweep train side by side, one trial on each."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from fttui.engine.errors import ConfigError
from fttui.engine.run.run_dir import RunDirectory

from .conduct import TrialStarter

CPU = "cpu"
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_THREADS = "OMP_NUM_THREADS"
_starting = threading.Lock()
"""Held while a run starts, because the variables count for the whole process."""


class OnDevice:
    """Starts the runs of trials on one device."""

    def __init__(self, starter: TrialStarter, device: str, threads: int | None = None) -> None:
        """Keep the parts.

        Args:
            starter: starts the runs.
            device: the number of a GPU, or `cpu`.
            threads: threads of the processor for each run; None leaves the number to torch.
        """
        self._starter = starter
        self._device = device
        self._threads = threads

    def start(self, overrides: list[str]) -> RunDirectory:
        """Start the run of a trial.

        Raises:
            FttuiError: it cannot be started with these settings.
        """
        with only_visible(self._device, self._threads):
            return self._starter.start(overrides)

    def take_up(self, run: RunDirectory) -> bool:
        """Resume the run of an interrupted trial; return False if it must start again."""
        with only_visible(self._device, self._threads):
            return self._starter.take_up(run)


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
    """Return the threads of each trial on the processor, of which several would block each other.

    None with one such trial, or if `OMP_NUM_THREADS` is set. Trials on GPUs need few.
    """
    trials = devices.count(CPU)
    if trials < 2 or os.environ.get(_THREADS):
        return None
    return max(1, processors // trials)


def _entry(device: str, visible: str | None) -> str:
    if device == CPU:
        return ""
    if visible is None:
        return device
    known = [part.strip() for part in visible.split(",")]
    return known[int(device)] if int(device) < len(known) else ""


def parse_devices(text: str | None, devices_per_run: int) -> tuple[str, ...]:
    """Return the devices in a text such as `0,1`; empty without a text.

    Args:
        text: numbers of GPUs, or `cpu` for each trial that trains on the processor.
        devices_per_run: `train.devices` of the configuration.

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
            f"--devices {text}: GPU {twice[0]} is there twice; two trials would share its memory"
        )
    if devices_per_run != 1:
        raise ConfigError(
            f"--devices {text}: a trial trains on one device, but train.devices is "
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
