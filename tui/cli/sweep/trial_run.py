"""The run of one trial: it is started or resumed, followed, and ended early."""

from __future__ import annotations

import argparse
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fttui.engine.errors import CheckpointError, CommandRejected, EngineGone, FttuiError
from fttui.engine.protocol.commands import Stop
from fttui.engine.protocol.states import RunState
from fttui.engine.run.processes.marks import read_engine
from fttui.engine.run.records.record_feed import RecordFeed
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.run.run_index import summarize

from ...view_model.sweep.trial_record import TrialRecord
from ..cluster.place import Cluster
from .sweep_folder import SweepFolder

_STARTS_IN_S = 180.0
_POLL_S = 0.2
_GRACE_S = 2.0
"""Seconds after the end of the process for which its last record is still awaited."""
_OUT_OF_MEMORY = ("out of memory", "outofmemory", "does not fit in memory")


@dataclass(frozen=True)
class Followed:
    """How following a trial has ended."""

    record: TrialRecord
    lost: bool = False
    """Whether the engine ended without a last record."""


class TrialRuns:
    """Starts the runs of a sweep's trials, one after another."""

    def __init__(self, root: Path, folder: SweepFolder, options: argparse.Namespace) -> None:
        self._root = root
        self._folder = folder
        self._options = options

    def start(self, overrides: list[str]) -> RunDirectory:
        """Start the run of a trial.

        Raises:
            FttuiError: the settings are not valid, do not fit in memory, or the engine did not
                start.
        """
        from fttui.engine.run.identity.trusted_code import record_consent

        from ...connection.engine_process import new_run, start_engine
        from ..preflight.plan import fitted
        from ..preflight.start_adapter import with_start_adapter
        from ..run import load_checked

        base = self._folder.base
        loaded = load_checked(base, overrides)
        loaded = with_start_adapter(loaded, self._options.runs_dir, str(base), _silent)
        loaded = fitted(loaded, force=self._options.force, say=_silent)
        record_consent(loaded.config)
        run = new_run(self._root, base, loaded, overrides)
        train = loaded.config.train
        started = start_engine(run, train.devices, restarts=train.restarts)
        try:
            started.wait_until_marked(_STARTS_IN_S)
        except KeyboardInterrupt:  # nothing knows this run yet; it would train on unseen
            started.process.send_signal(signal.SIGINT)
            raise
        return run

    def take_up(self, run: RunDirectory) -> bool:
        """Resume the run of a trial that was interrupted, unless it trains or has all steps.

        Return False if it has steps but no checkpoint, so that it must begin again.

        Raises:
            FttuiError: it cannot be resumed.
        """
        from ..run import resumed

        engine, state = read_engine(run), summarize(run).state
        if (engine is not None and engine.alive) or state is RunState.FINISHED:
            return True
        as_run = argparse.Namespace(
            resume=str(run.path),
            config=None,
            overrides=[],
            name=None,
            max_steps=None,
            devices=None,
            runs_dir=self._options.runs_dir,
            accept_changed="",
            trust_code=False,
        )
        try:
            resumed(as_run, Cluster())
        except CheckpointError:
            return False
        return True


def follow(
    run: RunDirectory, record: TrialRecord, tell: Callable[[TrialRecord, bool], str]
) -> Followed:
    """Follow the run of a trial to its end.

    Args:
        run: the run; its engine lives or has ended.
        record: collects what it trains.
        tell: called after each look at the journal, and with True after each new value of the
            metric; it returns why the trial has to end now, or an empty text.
    """
    ending, feed = "", RecordFeed(run)
    for _ in _looks(run):
        while records := feed.read():
            for one in records:
                if record.take(one) and not ending and record.ended is None:
                    ending = tell(record, True)
        if not ending and record.ended is None:
            ending = tell(record, False)
            if ending or record.halted:
                _stop(run, ending or record.halted)
                ending = ending or record.halted
        if record.ended is not None and not _alive(run):
            return Followed(record)
    for one in feed.read_rest():
        record.take(one)
    return Followed(record, lost=record.ended is None)


def _looks(run: RunDirectory) -> Iterator[None]:
    """Yield repeatedly, until shortly after the end of the engine."""
    gone_at = None
    while gone_at is None or time.monotonic() - gone_at < _GRACE_S:
        yield
        if gone_at is None and not _alive(run):
            gone_at = time.monotonic()
        time.sleep(_POLL_S)


def _alive(run: RunDirectory) -> bool:
    engine = read_engine(run)
    return engine is not None and engine.alive


def _stop(run: RunDirectory, why: str) -> None:
    """Stop a run with a checkpoint; if its hub does not answer, by a signal."""
    from ..experiments.run_driver import RunDriver

    with suppress(EngineGone):
        try:
            RunDriver(run, take=True).send(Stop(), f"sweep: {why}")
        except (CommandRejected, FttuiError):
            interrupt(run)


def interrupt(run: RunDirectory) -> None:
    """Let the engine of a run save and end, as Ctrl-C does with `run --headless`."""
    engine = read_engine(run)
    if engine is not None and engine.alive:
        with suppress(ProcessLookupError):
            os.kill(engine.pid, signal.SIGINT)


def wait_for_end(run: RunDirectory) -> None:
    """Wait until the engine of a run has ended."""
    while _alive(run):
        time.sleep(_POLL_S)


def kind_of_failure(error: str) -> str:
    """Return the kind of failure that an error of the engine is."""
    lower = error.lower()
    return "memory" if any(words in lower for words in _OUT_OF_MEMORY) else "error"


def _silent(_text: str) -> None:
    """Print nothing: what holds for all trials is printed once, before the first one."""
