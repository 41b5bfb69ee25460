"""`completion`: print a script that completes subcommands, options and run names in a shell."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

from fttui.engine.errors import FttuiError
from fttui.engine.protocol.commands import COMMANDS

from ..options import Commands, say

SHELLS = ("bash", "zsh", "fish", "tcsh")
_NAME = "[A-Za-z0-9._-]"
"""Characters of the run names that are offered; a folder with others is left out, because a shell
could take its name for a command."""

_BASH = f"""\
_fttui_runs() {{
  local file name
  for file in "${{FTTUI_RUNS:-runs}}"/*/run.json; do
    name="${{file%/run.json}}"; name="${{name##*/}}"
    [[ -e "$file" && "$name" =~ ^{_NAME}+$ && "$name" == "$1"* ]] && printf '%s\\n' "$name"
  done
}}
_fttui_words() {{
  local word
  for word in {{verbs}}; do [[ "$word" == "$1"* ]] && printf '%s\\n' "$word"; done
  _fttui_runs "$1"
}}
"""
_ZSH = """\
_fttui_runs() {
  local -a names
  names=( "${FTTUI_RUNS:-runs}"/*/run.json(N:h:t) )
  compadd -a names
}
_fttui_words() { compadd -- {verbs}; _fttui_runs }
"""

_DESCRIPTION = """\
Print a script that completes subcommands, options, files and, in bash and zsh, run names. Put it
where the shell looks for such scripts, for example:
  fttui completion bash > ~/.local/share/bash-completion/completions/fttui
  fttui completion zsh > ~/.zfunc/_fttui          (with ~/.zfunc in $fpath)
  fttui completion fish > ~/.config/fish/completions/fttui.fish
  fttui completion tcsh > ~/.fttui.tcsh           (source it in ~/.tcshrc)
"""


def add_commands(commands: Commands) -> None:
    """Register the subcommand `completion` of `fttui`."""
    parser = commands.add_parser(
        "completion",
        help="print the completion script of a shell",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=SHELLS, help="the shell to complete in")
    parser.set_defaults(handler=_completion)


def _completion(options: argparse.Namespace) -> int:
    from ..main import build_parser

    say(completion_script(build_parser(), options.shell).rstrip("\n"))
    return 0


def completion_script(parser: argparse.ArgumentParser, shell: str) -> str:
    """Return the script that completes the words of a parser in a shell.

    Raises:
        FttuiError: the package shtab is not installed.
    """
    try:
        import shtab
    except ModuleNotFoundError:
        raise FttuiError(
            "completion needs the package shtab, which is not installed; run: pip install shtab"
        ) from None
    for action in _actions(parser):
        if (kind := _kind(action)) is not None:
            action.complete = kind  # type: ignore[attr-defined]  # where shtab looks for it
    verbs = " ".join(dict.fromkeys(spec.verb.split()[0] for spec in COMMANDS))
    preamble = {"bash": _BASH.replace("{verbs}", verbs), "zsh": _ZSH.replace("{verbs}", verbs)}
    return str(shtab.complete(parser, shell, preamble=preamble))


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the arguments of a parser and of its subcommands."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from _actions(inner)
        else:
            yield action


def _kind(action: argparse.Action) -> dict[str, str] | None:
    """Return what completes an argument, by shell; None if nothing does."""
    import shtab

    shown = action.metavar if isinstance(action.metavar, str) else ""
    if action.dest == "words":
        return {"bash": "_fttui_words", "zsh": "_fttui_words"}
    if re.search(r"\bRUN\b", shown):
        return {"bash": "_fttui_runs", "zsh": "_fttui_runs"}
    if shown in ("D", "DIR"):
        return dict(shtab.DIRECTORY)
    return dict(shtab.FILE) if action.type is Path or shown in ("FILE", "DATA") else None
