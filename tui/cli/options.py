"""Functions that subcommands share: common options, finding the run, host names, safe printing."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, NoReturn

from fttui.engine.errors import ConfigError, NoSuchRun
from fttui.engine.run.run_dir import RunDirectory, runs_root
from fttui.engine.run.run_index import find_run

from ..text.control_characters import escape_control_characters, escape_in_json

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]
else:
    Commands = object


class Parser(argparse.ArgumentParser):
    """An argument parser that accepts options between the words of `ctl` and of `race`.

    Its errors say what was given, what is expected, and where the help is.
    """

    def error(self, message: str) -> NoReturn:
        """Print what is wrong with the command line and the next step; exit with code 2."""
        known = [option for action in self._actions for option in action.option_strings]
        name, _, _ = self.prog.partition(" ")
        usage = " ".join(self.format_usage().removeprefix("usage: ").split())
        warn(f"{name}: {in_house_form(message, known, usage)}; see: {self.prog} --help")
        self.exit(2)

    def parse_known_args(  # type: ignore[override]  # typeshed knows overloads only
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse as argparse does, but for these two add words after an option to those before."""
        found, rest = super().parse_known_args(args, namespace)
        for name in ("words", "settings"):
            if hasattr(found, name) and not any(_is_option(word) for word in rest):
                setattr(found, name, [*getattr(found, name), *rest])
                rest = []
        if rest and " " in self.prog:  # here, because the parser of all commands knows no option
            self.error(f"{_UNKNOWN}: {' '.join(rest)}")
        return found, rest


_WANTED = {"int": "a whole number", "float": "a number", "Path": "a path"}
"""What a converter of argparse expects, by its name."""
_FORMS: tuple[tuple[str, Callable[[re.Match[str]], str]], ...] = (
    (
        r"argument (?P<what>.+?): invalid (?P<kind>\w+) value: (?P<got>.*)",
        lambda m: f"{m['what']}: got {m['got']}, expected {_WANTED.get(m['kind'], m['kind'])}",
    ),
    (
        r"argument (?P<what>.+?): invalid choice: (?P<got>.+?) \(choose from (?P<known>.*)\)",
        lambda m: f"{m['what']}: got {m['got']}, expected one of {m['known']}",
    ),
    (
        r"argument (?P<what>.+?): expected (?P<count>.*) arguments?",
        lambda m: f"{m['what']}: got no value, expected {m['count']}",
    ),
)
"""Errors of argparse as patterns, and the same in the form of all other errors."""


def in_house_form(message: str, known: Sequence[str] = (), usage: str = "") -> str:
    """Return an error of argparse in the form of other errors: what, got, expected, next step.

    An unknown error stays as it is.

    Args:
        message: the error.
        known: the options of the command, of which the most similar one is named.
        usage: how the command is used.
    """
    if match := re.fullmatch(f"{_UNKNOWN}: (.*)", message, re.DOTALL):
        near = [found for word in match[1].split() for found in get_close_matches(word, known, 1)]
        extra = not near and not any(map(_is_option, match[1].split()))
        hint = f"; use: {usage}" if extra and usage else _did_you_mean(near)
        return f"got {match[1]}, which this command does not take{hint}"
    if match := re.fullmatch(r"the following arguments are required: (.*)", message):
        be = "are" if "," in match[1] else "is"
        return f"{match[1]} {be} missing; use: {usage}{_LISTS.get(match[1], '')}"
    if match := re.fullmatch(
        r"argument COMMAND: invalid choice: (.+?) \(choose from (.*)\)", message
    ):
        given = match[1].strip("'")
        near = get_close_matches(given, re.findall(r"[\w-]+", match[2]), 1)
        near = [_MEANT[given]] if given in _MEANT else near
        return f"got {match[1]}, which is no command{_did_you_mean(near)}"
    for pattern, form in _FORMS:
        if match := re.fullmatch(pattern, message, re.DOTALL):
            return form(match)
    return message


_UNKNOWN = "unrecognized arguments"
_MEANT = {"compare": "diff", "list": "ls", "train": "run"}
"""Commands by names that other tools or the app have for them."""
_LISTS = {"RUN": "; list the runs with: fttui ls"}
"""How to find a value for a required argument, by its name."""


def _did_you_mean(near: Sequence[str]) -> str:
    return f"; did you mean {near[0]}?" if near else ""


def _is_option(word: str) -> bool:
    """Whether a word is an option: it begins with a minus that no digit follows."""
    return word.startswith("-") and not word[1:2].isdigit()


def add_columns(parser: argparse.ArgumentParser) -> None:
    """Add `--column FIELD=COLUMN`, which may be repeated."""
    parser.add_argument(
        "--column",
        metavar="FIELD=COLUMN",
        type=_field_and_column,
        action="append",
        default=[],
        help="read a field of the records, such as prompt, from this column; may be repeated",
    )


def _field_and_column(text: str) -> tuple[str, str]:
    """Return field and column of `FIELD=COLUMN`.

    Raises:
        argparse.ArgumentTypeError: It has another form, or the records have no such field.
    """
    from fttui.engine.config.checks.data import FIELDS

    name, equals, column = text.partition("=")
    if not (name and equals and column):
        raise argparse.ArgumentTypeError(f"got {text!r}, expected FIELD=COLUMN, as in prompt=Text")
    if name not in FIELDS:
        close = get_close_matches(name, FIELDS, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise argparse.ArgumentTypeError(
            f"got the field {name!r}, expected one of {', '.join(FIELDS)}{hint}"
        )
    return name, column


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


def say_wrapped(text: str) -> None:
    """Print a sentence as `say` does; on a terminal no word and no value is broken over two lines.

    It is not for commands to copy, which a terminal copies whole if it breaks the line itself.
    """
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    say("\n".join(wrapped(text, width)) if width else text)


def say_line(text: str) -> None:
    """Print a line of a report: a sentence wrapped, but a line with a command to copy whole."""
    (say_wrapped if _is_prose(text) else say)(text)


def wrapped(text: str, width: int) -> list[str]:
    """Return a sentence as lines of at most `width` cells, a number together with its unit.

    All lines are indented as the text is.
    """
    kept = re.sub(r"(?<=\d) (?=[KMGT]iB\b|%|s\b)", "\N{NO-BREAK SPACE}", text)
    rows = textwrap.wrap(
        kept,
        max(width, 20),
        subsequent_indent=" " * (len(text) - len(text.lstrip(" "))),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [row.replace("\N{NO-BREAK SPACE}", " ") for row in rows] or [""]


def warn(text: str) -> None:
    """Print a text to standard error; control characters in it are shown as escapes.

    On a terminal no word is broken over two lines, except in lines with a command to copy.
    """
    width = shutil.get_terminal_size().columns if sys.stderr.isatty() else 0
    lines = text.split("\n") if width else []
    rows = [row for line in lines for row in (wrapped(line, width) if _is_prose(line) else [line])]
    print(
        escape_control_characters("\n".join(rows) if width else text), file=sys.stderr, flush=True
    )


def _is_prose(line: str) -> bool:
    """Whether a line has no command to copy, which a terminal copies whole if it breaks it."""
    return "fttui " not in line


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
