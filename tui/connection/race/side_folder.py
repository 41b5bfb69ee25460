"""The folders of side runs, which train the variants of a race on several devices."""

from __future__ import annotations

import os
import shutil
import signal
import time
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import get_args

import msgspec

from fttui.engine.errors import FttuiError
from fttui.engine.run.checkpoint_store import CheckpointStore
from fttui.engine.run.folder.links import require_plain
from fttui.engine.run.processes.marks import read_endpoint, read_engine
from fttui.engine.run.run_dir import RunDirectory, create_run

_HUB_ENDS_IN_S = 5.0
_IDLE_S = 5.0
"""Seconds after which the hub of a side run ends whose race was killed."""
_POLL_S = 0.05


def make_side_run(run: RunDirectory, number: int, checkpoint: str) -> RunDirectory:
    """Create the folder of a side run, which begins at a checkpoint of the run.

    Args:
        run: the run that is raced.
        number: number of the device, from 1, which names the folder.
        checkpoint: the checkpoint.

    Raises:
        FttuiError: the folder cannot be created, or the checkpoint is not there or is damaged.
    """
    require_plain(run.path)
    store = CheckpointStore(run)
    store.verify(store.find(checkpoint))
    try:
        side = create_run(
            run.side_runs,
            name=f"side-{number}",
            config=run.config,
            source=run.source_config.read_text(encoding="utf-8"),
            resolved=side_config(run),
            overrides=[],
            version=version("fttui"),
        )
        if run.content_identities.exists():  # checkpoints of older versions do not have them
            side.write(side.content_identities, run.content_identities.read_bytes())
        copy_checkpoint(run, checkpoint, side, checkpoint)
    except OSError as error:
        raise FttuiError(f"cannot create a side run in {run.side_runs}: {error}") from None
    return side


def side_config(run: RunDirectory) -> str:
    """Return the configuration of a run for its side runs, which only train and evaluate.

    They are not delivered to trackers, send no messages, measure no benchmarks, and have no budget
    and no early stopping, because the race ends them.

    Raises:
        ConfigError: the configuration cannot be read.
    """
    from fttui.engine.config.load import dump_config, read_resolved
    from fttui.engine.config.schema import BenchmarksConfig
    from fttui.engine.config.sections.budget import BudgetConfig
    from fttui.engine.config.sections.outward import AlertKind

    config = read_resolved(run.config)
    change = msgspec.structs.replace
    return dump_config(
        change(
            config,
            trackers=[],
            alerts=change(config.alerts, mute=list(get_args(AlertKind))),
            eval=change(config.eval, benchmarks=BenchmarksConfig()),
            train=change(config.train, early_stop=None, restarts=0),
            budget=BudgetConfig(),
            hub=change(config.hub, idle_s=_IDLE_S),
        )
    )


def copy_checkpoint(source: RunDirectory, name: str, target: RunDirectory, new: str) -> None:
    """Copy a checkpoint to another run, as links to the same files where the disk has them.

    The files of a checkpoint never change, so both can share them. An existing copy is kept.

    Raises:
        OSError: it cannot be copied.
    """
    place = CheckpointStore(target).path(new)
    if place.exists():
        return
    draft = place.with_name(f".{new}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    shutil.copytree(CheckpointStore(source).path(name), draft, copy_function=_linked)
    draft.rename(place)


def _linked(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:
        return str(shutil.copy2(source, target))
    return target


def end_hub(run: RunDirectory) -> None:
    """End the hub of a side run whose engine has ended."""
    deadline = time.monotonic() + _HUB_ENDS_IN_S
    number = signal.SIGTERM
    while (endpoint := read_endpoint(run)) is not None and endpoint.alive:
        with suppress(ProcessLookupError):
            os.kill(endpoint.pid, number)
        if time.monotonic() > deadline:
            number = signal.SIGKILL
        time.sleep(_POLL_S)


def side_run(run: RunDirectory, place: str) -> RunDirectory:
    """Return the side run with the name of its folder."""
    return RunDirectory(run.side_runs / Path(place).name)


def remove_side_runs(run: RunDirectory) -> None:
    """Remove the side runs of a race that has ended or was cancelled, if there are any.

    What is left of their engines and hubs after the race was killed ends first.

    Raises:
        OSError: they cannot be removed.
    """
    with run.open() as folder:
        if not folder.exists(run.side_runs.name):
            return
        for name in folder.folders(run.side_runs.name):
            _wait_for_end(side := side_run(run, name))
            end_hub(side)
        folder.remove_tree(run.side_runs.name)


def _wait_for_end(side: RunDirectory) -> None:
    """Wait for the end of an engine whose race was killed, and which notices that by itself."""
    deadline = time.monotonic() + _HUB_ENDS_IN_S
    while (engine := read_engine(side)) is not None and engine.alive:
        if time.monotonic() > deadline:
            return
        time.sleep(_POLL_S)
