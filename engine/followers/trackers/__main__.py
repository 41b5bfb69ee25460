"""The process that delivers one run to one tracker: `python -m fttui.engine.followers.trackers`.

The engine starts it for each tracker of the configuration, and `fttui sync` starts it later.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from ...errors import FttuiError
from ...run.records.record_feed import engine_works
from ...run.run_dir import RunDirectory
from ..quiet import Termination, masked, own_output, settle_in_background
from ..run_config import tracking_of
from .courier import Courier
from .destinations import Destination, destination, facts_of, open_sink
from .follow import Follower
from .ledger import Busy, LedgerFile

Say = Callable[[str], None]
_LOOK_EVERY_S = 1.0
_SETTINGS = ("project", "entity", "folder")


def main(arguments: list[str]) -> int:
    """Deliver a run; return the exit code."""
    options = _parser().parse_args(arguments)
    settle_in_background()
    terminated = Termination()
    output = own_output()

    def say(text: str) -> None:
        when = time.strftime("%Y-%m-%d %H:%M:%S ") if options.wait else ""
        output.write(f"{when}{options.to}: {masked(text, os.environ)}\n")

    try:
        return _deliver(options, say, terminated)
    except FttuiError as error:
        say(str(error))
        return error.exit_code
    except Exception as error:  # noqa: BLE001  # a library may raise any exception
        say(f"ended by {type(error).__name__}: {error}")
        return FttuiError.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m fttui.engine.followers.trackers")
    parser.add_argument("run", type=Path, help="run folder")
    parser.add_argument("--to", required=True, help="tracker")
    parser.add_argument("--follow", action="store_true", help="until the engine ends")
    parser.add_argument("--wait", action="store_true", help="for another process that delivers")
    parser.add_argument("--again", action="store_true", help="deliver everything once more")
    for name in (*_SETTINGS, "uri"):
        parser.add_argument(f"--{name}")
    return parser


def _deliver(options: argparse.Namespace, say: Say, terminated: Termination) -> int:
    run = RunDirectory(options.run.absolute())
    facts = facts_of(run)
    given = {name: getattr(options, name) for name in _SETTINGS if getattr(options, name)}
    tracking = msgspec.structs.replace(tracking_of(facts.config), **given)
    uri = options.uri or os.environ.get("MLFLOW_TRACKING_URI")
    goal = destination(options.to, run, tracking, uri)
    with _ledger_file(run, goal, options, terminated) as file:
        if options.again and file.ledger.timelines:
            file.ledger.attempt += 1
            file.ledger.timelines, file.ledger.left_out = {}, {}
        sink = open_sink(options.to, run, tracking, file.ledger.count, uri)
        courier = Courier(facts, sink, file.ledger, file.save)
        follower = Follower(run, courier, say, terminated.wait)
        say(f"delivering {run.id} to {goal.shown}")
        follower.follow(while_it_runs=options.follow)
    say(f"{courier.delivered:,} records delivered")
    left_out = [f"{number:,} {reason}" for reason, number in courier.left_out]
    for line in (*left_out, *follower.not_read):
        say(f"left out: {line}")
    return 0


def _ledger_file(
    run: RunDirectory, goal: Destination, options: argparse.Namespace, terminated: Termination
) -> LedgerFile:
    """Open the ledger; with `--wait`, once the process before this one has released it."""
    while True:
        try:
            return LedgerFile(run, goal.tracker, goal.place, goal.shown)
        except Busy:
            if not options.wait or not engine_works(run) or terminated.wait(_LOOK_EVERY_S):
                raise


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
