"""Starts the trials of a sweep on the devices that train side by side."""

from __future__ import annotations

from fttui.engine.run.run_dir import RunDirectory

from ...connection.race.devices import only_visible
from .conduct import TrialStarter


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
