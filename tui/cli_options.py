"""Options that several subcommands share."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from fttui.engine.run.layout import RunDirectory, runs_root
from fttui.engine.run.registry import find_run

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]
else:
    Commands = object


def add_runs_dir(parser: argparse.ArgumentParser) -> None:
    """`--runs-dir`."""
    parser.add_argument(
        "--runs-dir", metavar="D", help="folder of runs (default: $FTTUI_RUNS, else ./runs)"
    )


def add_run(parser: argparse.ArgumentParser, *, optional: bool = True) -> None:
    """RUN and where to look for it."""
    if optional:
        parser.add_argument("run", metavar="RUN", nargs="?", help="default: the newest live run")
    else:
        parser.add_argument("run", metavar="RUN", help="name, beginning of a name, or folder")
    add_runs_dir(parser)


def chosen_run(options: argparse.Namespace, *, live: bool) -> RunDirectory:
    """The run that the options name; without a name the newest one, a live one if asked.

    Raises:
        NoSuchRun: none or several answer to the name.
    """
    return find_run(runs_root(options.runs_dir), options.run, live=live)
