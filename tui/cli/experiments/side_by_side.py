"""Put together a race whose variants train side by side on several devices."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from fttui.engine.protocol.usage.amounts import Usage
from fttui.engine.run.run_dir import RunDirectory

from ...connection.race.devices import threads_of
from ...connection.race.race_file import store_race
from ...dialogs.race_text import side_progress
from ...view_model.race.race_state import CPU, RaceState
from ..data_check.process import ProgressLine
from ..options import say
from .conduct import Telling
from .run_driver import RunDriver, TrainedSteps
from .side_lane import SideLane
from .side_race import DevicesRace

_STORED_EVERY_S = 1.0


def race_on_devices(
    run: RunDirectory, state: RaceState, driver: RunDriver, finished: Callable[[int], None]
) -> DevicesRace:
    """Return the race.

    Args:
        run: the run, which waits at the start of the race.
        state: the race.
        driver: the driver of the run.
        finished: prints the result of a variant after a round.
    """
    turn = threading.RLock()
    threads = threads_of(state.devices, os.cpu_count() or 1)

    def used(usage: Usage) -> None:
        with turn:
            state.side_usage = state.side_usage.plus(usage)

    lanes = [SideLane(run, state, n, threads, used) for n in range(1, len(state.devices) + 1)]
    telling = _telling(run, state, turn, finished)
    releases = any(one != CPU for one in state.devices)
    return DevicesRace(state, driver, telling, lanes, releases=releases)


def _telling(
    run: RunDirectory,
    state: RaceState,
    turn: AbstractContextManager[object],
    finished: Callable[[int], None],
) -> Telling:
    line = ProgressLine(sys.stdout)
    stored_at = 0.0

    def save() -> None:
        with turn:
            store_race(run, state)
            if state.running is None and all(one.at is None for one in state.variants):
                line.clear()  # nothing trains, so other lines may follow

    def progress(index: int, found: TrainedSteps, target: int) -> None:
        nonlocal stored_at
        with turn:
            variant = state.variants[index]
            variant.at = found.step if state.running is None else None
            if time.monotonic() - stored_at >= _STORED_EVERY_S:
                stored_at = time.monotonic()
                store_race(run, state)
            line.show(side_progress(state, index, found.step, target))

    def ended(index: int) -> None:
        line.clear()
        finished(index)

    def left_out(device: str, why: str) -> None:
        line.clear()
        say(f"note: {device} is left out, because no engine could start there: {why}")

    return Telling(save, progress, ended, turn, left_out)
