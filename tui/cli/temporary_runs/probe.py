"""Temporary runs that are measured and then deleted, as `profile` and `lr-find` need them."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from fttui.engine.protocol.codec import decode_readable
from fttui.engine.protocol.events import Event
from fttui.engine.run.files import last_lines
from fttui.engine.run.journal import FrameReader
from fttui.engine.run.run_dir import RunDirectory

from ..options import say, warn

if TYPE_CHECKING:
    from ...connection.engine_process import StartedEngine

_Found = TypeVar("_Found", bound=Event)
_LOG_LINES = 15
_LEAVES_IN_S = 30.0
_ONLY_STEPS = (
    "train.epochs=null",
    "train.early_stop=null",
    "train.restarts=0",
    "eval.every=0",
    "eval.per_epoch=null",
    "eval.at_start=false",
    "checkpoint.every=0",
    "checkpoint.per_epoch=null",
    "checkpoint.at_start=false",
    "checkpoint.best=null",
    "policy.autopilot=off",
    "hub.idle_s=0",
)
"""Overrides that leave only the training steps: no evaluation, no checkpoint, no early stop."""


@dataclass(frozen=True)
class Probe(Generic[_Found]):
    """The result of a temporary run; its folder is deleted when the `with` block ends."""

    exit_code: int
    run: RunDirectory
    found: _Found | None
    """The event that holds the measurement; None if the run ended before it."""


def add_probe_options(parser: argparse.ArgumentParser) -> None:
    """Add CONFIG and the options `--set`, `--force` and `--json` to a parser."""
    parser.add_argument("config", metavar="CONFIG", type=Path, help="a YAML file")
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="K=V",
        help="override a key of the configuration",
    )
    parser.add_argument(
        "--force", action="store_true", help="start even if the run does not fit by the estimate"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


@contextmanager
def probe(
    options: argparse.Namespace,
    overrides: Sequence[str],
    engine_options: Sequence[str],
    kind: type[_Found],
) -> Iterator[Probe[_Found]]:
    """Run a configuration to its end in a temporary folder, apart from the user's runs.

    The configuration, the memory and the data are checked first, as for a run.

    Args:
        options: The command line, with the options of `add_probe_options`.
        overrides: Keys to override for the measurement, as K=V.
        engine_options: Options of the engine that ask for the measurement.
        kind: The kind of event that holds the measurement.

    Raises:
        FttuiError: The run cannot start, for the same reasons as with `fttui run`, or its engine
            exited without recording how the run ended.
    """
    from ...connection.engine_process import new_run, start_engine
    from ..headless import follow
    from ..run import preflight

    every = [*options.overrides, *_ONLY_STEPS, *overrides]
    tell = warn if options.json else say
    loaded = preflight(options.config, every, force=options.force, say=tell)
    with tempfile.TemporaryDirectory(prefix="fttui-probe-", ignore_cleanup_errors=True) as folder:
        run = new_run(Path(folder), options.config, loaded, every)
        engine = start_engine(run, loaded.config.train.devices, options=engine_options)
        with _ended(engine):
            code = follow(engine, (lambda text: None) if options.json else say)
        if code and options.json:
            warn("\n".join(last_lines(run.engine_log, _LOG_LINES)))
        yield Probe(code, run, _newest(run, kind))


@contextmanager
def _ended(engine: StartedEngine) -> Iterator[None]:
    """Terminate an engine that still runs at the end of the block, before its folder is deleted.

    Within the block, SIGTERM ends this process by an exception, so that the end is reached.
    """
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        if engine.process.poll() is None:
            engine.process.terminate()
            engine.process.wait(_LEAVES_IN_S)


def _newest(run: RunDirectory, kind: type[_Found]) -> _Found | None:
    found = None
    for payload in FrameReader(run.journal):
        record = decode_readable(payload)
        if record is not None and isinstance(record.event, kind):
            found = record.event
    return found
