"""Options that several subcommands share."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from fttui.engine.errors import ConfigError, NoSuchRun
from fttui.engine.run.run_dir import RunDirectory, runs_root
from fttui.engine.run.run_index import find_run

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]
else:
    Commands = object


class Parser(argparse.ArgumentParser):
    """A parser that lets options stand between the WORDS of a subcommand, if it takes any."""

    def parse_known_args(  # type: ignore[override]  # typeshed knows overloads only
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """As in argparse, which gives up on words that come after a later option."""
        found, rest = super().parse_known_args(args, namespace)
        if hasattr(found, "words") and not any(_is_option(word) for word in rest):
            found.words, rest = [*found.words, *rest], []
        return found, rest


def _is_option(word: str) -> bool:
    """A negative number is none."""
    return word.startswith("-") and not word[1:2].isdigit()


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


def add_remote_cmd(parser: argparse.ArgumentParser) -> None:
    """`--remote-cmd`."""
    parser.add_argument(
        "--remote-cmd",
        metavar="CMD",
        help="how fttui is called on the other machine, such as /opt/venv/bin/fttui",
    )


def say(line: str) -> None:
    """A line for the person, at once."""
    print(line, flush=True)


def chosen_run(options: argparse.Namespace, *, live: bool) -> RunDirectory:
    """The run that the options name; without a name the newest one, a live one if asked.

    Raises:
        NoSuchRun: none or several answer to the name.
    """
    return find_run(runs_root(options.runs_dir), options.run, live=live)


def require_machines(words: Sequence[str], options: argparse.Namespace) -> None:
    """Refuse what is a folder or a run of this machine where names of machines are meant.

    Raises:
        ConfigError: saying how to look at it.
    """
    from ..connection.ssh.hosts import is_known_host

    for word in words:
        if {"@", ":"} & set(word) or is_known_host(word):
            continue
        if Path(word).is_dir() and not (Path(word) / "run.json").is_file():
            raise _no_machine(word, "a folder", f"fttui ls --runs-dir {word}")
        with suppress(NoSuchRun):
            run = find_run(runs_root(options.runs_dir), word)
            raise _no_machine(word, "a run", f"fttui attach {run.id}")


def _no_machine(word: str, what: str, way: str) -> ConfigError:
    return ConfigError(
        f"{word} is {what} of this machine; look at it with: {way}, or write {word}: for another "
        "machine of that name"
    )


def name_and_step(text: str) -> tuple[str, str | None]:
    """RUN[@STEP]; a folder's path may hold an @ of its own."""
    name, at, step = text.rpartition("@")
    return (name, step) if at and "/" not in step else (text, None)
