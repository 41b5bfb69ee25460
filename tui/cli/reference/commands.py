"""The page of all subcommands and of the commands of a run, generated from their tables."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from fttui.engine.protocol.commands import COMMANDS, CommandSpec
from fttui.engine.protocol.states import RunState
from fttui.engine.run.reference.tables import row

from ..main import build_parser
from ..shell.man_page import arguments, described, written_form

_INTRO = """\
# Commands

Every subcommand of `fttui` with its arguments, the commands of a run, and the exit codes. How
they are used is in [commands](../commands.md). Generated from the parser and
`engine/protocol/commands.py` with `python -m fttui.tui.cli.reference docs/reference`.
"""
_WHEN = {"next": "from the next step on", "here": "at the last finished step",
         "before": "before the next step"}  # fmt: skip


def commands_page() -> str:
    """Return the Markdown text of docs/reference/commands.md."""
    parser = build_parser()
    lines = [_INTRO, "## Subcommands\n", "| option of every subcommand | action |", "|---|---|"]
    lines += ["| `-h`, `--help` | explain the subcommand |", ""]
    for name, text, inner in described(parser):
        lines += _subcommand(name, text, inner)
    lines += ["## Commands of a run\n", *_commands_of_a_run()]
    lines += ["## Exit codes\n", "| code | meaning |", "|---|---|", *_exit_codes(parser)]
    return "\n".join(lines).rstrip() + "\n"


def _subcommand(name: str, text: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    yield f"### fttui {name}\n"
    yield f"{text[:1].upper()}{text[1:]}.\n"
    shown = [action for action in arguments(parser) if "--help" not in action.option_strings]
    if not shown:
        return
    yield "| argument | meaning |"
    yield "|---|---|"
    for action in shown:
        meaning = " ".join((action.help or "").replace("%%", "%").split())
        yield row(f"`{written_form(action)}`", meaning)
    yield ""


def _commands_of_a_run() -> Iterator[str]:
    yield "They are sent with `fttui ctl RUN COMMAND`, or typed in the app after `:`.\n"
    yield "| command | action | takes effect | while the run is |"
    yield "|---|---|---|---|"
    for spec in COMMANDS:
        yield row(f"`{spec.usage}`", spec.help, _WHEN[spec.effect], _states(spec))
    yield ""


def _states(spec: CommandSpec) -> str:
    return ", ".join(state.value for state in RunState if state in spec.legal)


def _exit_codes(parser: argparse.ArgumentParser) -> Iterator[str]:
    _, _, codes = (parser.epilog or "").partition("exit codes:\n")
    for line in codes.splitlines():
        code, _, meaning = line.strip().partition(" ")
        yield row(code, meaning.strip())
