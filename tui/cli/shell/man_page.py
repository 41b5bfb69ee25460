"""The manual page fttui(1), generated from the parser of the command line.

`python -m fttui.tui.cli.shell.man_page docs/man/fttui.1` writes it.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from ..main import build_parser


def man_page() -> str:
    """Return the text of the manual page in roff, the same for every version of Python."""
    return "\n".join(_lines(build_parser())) + "\n"


def _lines(parser: argparse.ArgumentParser) -> Iterator[str]:
    yield '.TH FTTUI 1 "" "fttui" "User Commands"'
    yield from (
        ".SH NAME",
        r"fttui \- fine\-tune an LLM; watch and control the run in the terminal",
    )
    yield from (".SH SYNOPSIS", r".B fttui", r"[\-h] [\-\-version] [\-\-ascii] [COMMAND ...]")
    yield from (".SH DESCRIPTION", _text(parser.description or ""))
    yield from (".SH OPTIONS", *_arguments(parser))
    yield ".SH COMMANDS"
    for name, text, inner in described(parser):
        yield from _command(name, text, inner)
    before, _, codes = (parser.epilog or "").partition("exit codes:\n")
    yield from (".SH NOTES", ".nf", _text(before.strip()), ".fi")
    yield from (".SH EXIT STATUS", ".nf", _text(codes.rstrip()), ".fi")


def described(
    parser: argparse.ArgumentParser,
) -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    """Yield the name of each subcommand, one line about it, and its parser."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, inner in action.choices.items():
                yield name, helps[name], inner


def arguments(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Return the arguments of one command, positional ones first, without deprecated ones."""
    shown = [
        one
        for one in parser._actions
        if not isinstance(one, argparse._SubParsersAction) and one.help != argparse.SUPPRESS
    ]
    return sorted(shown, key=lambda one: bool(one.option_strings))


def _command(name: str, text: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    yield f'.SS "fttui {name}"'.replace("-", r"\-")
    yield _text(f"{text[:1].upper()}{text[1:]}.")
    if parser.description:
        raw = parser.formatter_class is argparse.RawDescriptionHelpFormatter
        yield ".PP"
        yield from (
            (".nf", _text(parser.description.rstrip()), ".fi")
            if raw
            else (_text(" ".join(parser.description.split())),)
        )
    yield from _arguments(parser)


def _arguments(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield a tagged paragraph for each argument, positional ones first."""
    for action in arguments(parser):
        yield ".TP"
        yield f".B {_text(written_form(action))}"
        yield _text(" ".join((action.help or "").replace("%%", "%").split()))


def written_form(action: argparse.Action) -> str:
    """Return how an argument is written, such as `-o, --out FILE`."""
    value = action.metavar if isinstance(action.metavar, str) else ""
    if not value and action.choices is not None:
        value = "|".join(map(str, action.choices))
    if not action.option_strings:
        return value or action.dest
    takes = action.nargs != 0
    tail = f" [{value}]" if action.nargs == "?" else f" {value}" if takes and value else ""
    return ", ".join(action.option_strings) + tail


def _text(text: str) -> str:
    """Return a text in which the characters that roff interprets are escaped."""
    plain = text.replace("\\", r"\e").replace("-", r"\-")
    lines = re.sub(r"[^\x00-\x7f]", lambda sign: rf"\[u{ord(sign[0]):04X}]", plain).splitlines()
    return "\n".join(rf"\&{line}" if line.startswith((".", "'")) else line for line in lines)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(man_page(), encoding="utf-8")
