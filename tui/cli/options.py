"""Functions that subcommands share: common options, finding the run, host names, safe printing."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from fttui.engine.errors import ConfigError, NoSuchRun
from fttui.engine.run.run_dir import RunDirectory, runs_root
from fttui.engine.run.run_index import find_run

from ..text.control_characters import escape_control_characters, escape_in_json

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]
else:
    Commands = object


class Parser(argparse.ArgumentParser):
    """An argument parser that accepts options between the words of `ctl` and of `race`."""

    def parse_known_args(  # type: ignore[override]  # typeshed knows overloads only
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse as argparse does, but for these two add words after an option to those before."""
        found, rest = super().parse_known_args(args, namespace)
        for name in ("words", "settings"):
            if hasattr(found, name) and not any(_is_option(word) for word in rest):
                setattr(found, name, [*getattr(found, name), *rest])
                rest = []
        return found, rest


def _is_option(word: str) -> bool:
    """Whether a word is an option: it begins with a minus that no digit follows."""
    return word.startswith("-") and not word[1:2].isdigit()


def add_runs_dir(parser: argparse.ArgumentParser) -> None:
    """Add the option `--runs-dir` to a parser."""
    parser.add_argument(
        "--runs-dir", metavar="D", help="folder with the runs (default: $FTTUI_RUNS, else ./runs)"
    )


def add_run(parser: argparse.ArgumentParser, *, optional: bool = True) -> None:
    """Add the argument RUN, which may be left out if `optional`, and the option `--runs-dir`."""
    if optional:
        parser.add_argument(
            "run", metavar="RUN", nargs="?", help="default: the newest run, live or ended"
        )
    else:
        parser.add_argument("run", metavar="RUN", help="name, unique prefix, or folder")
    add_runs_dir(parser)


def add_remote_cmd(parser: argparse.ArgumentParser) -> None:
    """Add the option `--remote-cmd` to a parser."""
    parser.add_argument(
        "--remote-cmd",
        metavar="CMD",
        help="the fttui command on the remote host, such as /opt/venv/bin/fttui",
    )


def add_accept_changed(parser: argparse.ArgumentParser) -> None:
    """Add the option `--accept-changed` to a parser."""
    parser.add_argument(
        "--accept-changed",
        metavar="KINDS",
        default="",
        help="continue although these differ from the checkpoint: base, tokenizer, template, data, "
        "adapter (separated by commas) or all",
    )


def add_trust_code(parser: argparse.ArgumentParser) -> None:
    """Add the option `--trust-code` to a parser."""
    parser.add_argument(
        "--trust-code",
        metavar="HASH",
        default="",
        help="execute the Python code of the run's model if it has this hash (the "
        "refusal names it)",
    )


class _RenamedFlag(argparse.Action):
    """An old name of a flag: sets the flag and warns, and is left out of help and reference.

    Args:
        now: the name that replaces it.
        gone_in: the version that removes it.
    """

    def __init__(
        self, option_strings: list[str], dest: str, *, now: str, gone_in: str, **other: Any
    ) -> None:
        super().__init__(
            option_strings, dest, nargs=0, default=False, help=argparse.SUPPRESS, **other
        )
        self._now, self._gone_in = now, gone_in

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        warn(
            f"{option_string} is deprecated and will be removed in fttui {self._gone_in}; use "
            f"{self._now}"
        )
        setattr(namespace, self.dest, True)


def add_resume(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the flag `--resume`, and its old name `--go-on`, to a parser.

    Args:
        parser: the parser of a subcommand that can be interrupted.
        what: the help text.
    """
    parser.add_argument("--resume", action="store_true", help=what)
    parser.add_argument(
        "--go-on", dest="resume", action=_RenamedFlag, now="--resume", gone_in="0.3.0"
    )


def at_least_one(text: str) -> int:
    """Parse the value of an option that is a whole number from 1 on.

    Raises:
        ArgumentTypeError: it is none.
    """
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a whole number from 1 on")
    return number


def say(text: str, *, flush: bool = True) -> None:
    """Print a text; control characters in it are shown as escapes."""
    print(escape_control_characters(text), flush=flush)


def warn(text: str) -> None:
    """Print a text to standard error; control characters in it are shown as escapes."""
    print(escape_control_characters(text), file=sys.stderr, flush=True)


def say_json(value: Any, *, indent: int | None = None, flush: bool = True) -> None:
    """Print plain values as JSON, with control characters escaped."""
    print(escape_in_json(json.dumps(value, ensure_ascii=False, indent=indent)), flush=flush)


def chosen_run(options: argparse.Namespace, *, live: bool) -> RunDirectory:
    """Return the run that the options name.

    Without a name it is the newest run, or if `live` the newest live run.

    Raises:
        NoSuchRun: no run or several runs match the name, or there is no run at all.
        ConfigError: the runs folder cannot be read.
    """
    return find_run(runs_root(options.runs_dir), options.run, live=live)


def require_hosts(words: Sequence[str], options: argparse.Namespace) -> None:
    """Refuse words that name a local folder or a local run where names of hosts are expected.

    A word with @ or :, or the name of a known host, is not checked further.

    Raises:
        ConfigError: the word names a folder or a run; the text says how to open it.
    """
    from ..connection.ssh.hosts import is_known_host

    for word in words:
        if {"@", ":"} & set(word) or is_known_host(word):
            continue
        if Path(word).is_dir() and not (Path(word) / "run.json").is_file():
            raise _no_host(word, "a folder", f"fttui ls --runs-dir {quote(word)}")
        with suppress(NoSuchRun):
            run = find_run(runs_root(options.runs_dir), word)
            raise _no_host(word, "a run", f"fttui attach {quote(run.id)}")


def _no_host(word: str, what: str, way: str) -> ConfigError:
    return ConfigError(
        f"{word} is {what} on this machine; open it with: {way}, or write {word}: for a remote "
        "host of that name"
    )


def name_and_step(text: str) -> tuple[str, str | None]:
    """Split RUN[@STEP] into the run and the step, None without one.

    An @ before a slash belongs to the path of a folder, and one before a colon to a remote host.
    """
    name, at, step = text.rpartition("@")
    return (name, step) if at and not {"/", ":"} & set(step) else (text, None)
