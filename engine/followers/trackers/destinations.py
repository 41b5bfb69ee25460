"""The trackers by name: what each needs, where it delivers to, and how its sink is made."""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ...config.schema import TrackingConfig
from ...errors import FttuiError
from ...run.folder.links import require_plain
from ...run.run_dir import RunDirectory
from ..quiet import masked
from ..run_config import config_of
from .deliveries import RunFacts
from .sink import Count, Sink

EVENTS = "tensorboard"
"""Folder of the event files in a run folder."""


@dataclass(frozen=True)
class Destination:
    """One tracker with its settings."""

    tracker: str
    place: str
    """Address or folder, which differs from those of other destinations of the same tracker."""

    @property
    def shown(self) -> str:
        """The place without user names and passwords."""
        return masked(self.place, os.environ)


def destination(
    tracker: str, run: RunDirectory, tracking: TrackingConfig, uri: str | None
) -> Destination:
    """Return where a run is delivered to; `uri` is the server of mlflow, None the default one."""
    match tracker:
        case "tensorboard":
            place = str(_events_folder(run, tracking)) if tracking.folder else "the run folder"
        case "mlflow":
            place = f"{tracking.project} in {uri or 'the default store'}"
        case "trackio":
            place = tracking.project
        case _:
            place = f"{tracking.entity}/{tracking.project}" if tracking.entity else tracking.project
    return Destination(tracker, place)


def _events_folder(run: RunDirectory, tracking: TrackingConfig) -> Path:
    if tracking.folder is None:
        return run.path / EVENTS
    return Path(tracking.folder).expanduser().absolute() / run.id


def open_sink(
    tracker: str, run: RunDirectory, tracking: TrackingConfig, count: Count, uri: str | None
) -> Sink:
    """Load the library of a tracker and return its sink.

    Raises:
        FttuiError: the library is not installed; the text says how to install it.
        OSError: the folder of TensorBoard cannot be used.
    """
    try:
        if tracker == "mlflow":
            return _mlflow(tracking, count, uri)
        return _SINKS[tracker](run, tracking, count)
    except ImportError as error:
        raise FttuiError(
            f"{tracker} cannot be used: {error}; install it with: {install(tracker)}"
        ) from None


def _tensorboard(run: RunDirectory, tracking: TrackingConfig, _count: Count) -> Sink:
    from .sinks.tensorboard import TensorBoard

    folder = _events_folder(run, tracking)
    if tracking.folder is None:
        require_plain(run.path)
        with run.open() as opened:
            opened.make_folder(EVENTS)
    else:
        folder.mkdir(parents=True, exist_ok=True)
    return TensorBoard(folder)


def _mlflow(tracking: TrackingConfig, count: Count, uri: str | None) -> Sink:
    from .sinks.mlflow import MLflow

    return MLflow(uri, tracking.project, count)


def _wandb(_run: RunDirectory, tracking: TrackingConfig, _count: Count) -> Sink:
    from .sinks.wandb import WandB

    return WandB(tracking.project, tracking.entity)


def _trackio(_run: RunDirectory, tracking: TrackingConfig, _count: Count) -> Sink:
    from .sinks.trackio import Trackio

    return Trackio(tracking.project)


def _swanlab(_run: RunDirectory, tracking: TrackingConfig, count: Count) -> Sink:
    from .sinks.swanlab import SwanLab

    return SwanLab(tracking.project, tracking.entity, count)


_SINKS: dict[str, Callable[[RunDirectory, TrackingConfig, Count], Sink]] = {
    "wandb": _wandb,
    "tensorboard": _tensorboard,
    "trackio": _trackio,
    "swanlab": _swanlab,
}


_MODULES = {"tensorboard": "tensorboardX"}


def is_installed(tracker: str) -> bool:
    """Whether the library of a tracker is installed; it is not loaded."""
    return importlib.util.find_spec(_MODULES.get(tracker, tracker)) is not None


def install(tracker: str) -> str:
    """Return the command that installs what a tracker needs."""
    return f"pip install 'fttui[{tracker}]', or all trackers with: pip install 'fttui[trackers]'"


def facts_of(run: RunDirectory) -> RunFacts:
    """Read the facts about a run that trackers get.

    Raises:
        NoSuchRun: the folder is not a run folder.
        FttuiError: its configuration cannot be read.
    """
    identity = run.identity()
    seed = f"{identity.id}\n{identity.created}\n{identity.host}"
    key = hashlib.sha256(seed.encode()).hexdigest()[:16]
    return RunFacts(id=identity.id, key=key, created=identity.created, config=config_of(run))
