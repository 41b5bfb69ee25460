"""The `fttui` command. Nothing heavy is imported before a subcommand needs it."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from fttui.engine.errors import FttuiError, NotOwner

from . import (
    attach,
    bridge,
    check,
    control,
    doctor,
    export,
    lr_find,
    ls,
    profile,
    run,
)
from .options import Parser

INTERRUPTED = 130

_EPILOG = """\
RUN is a run's name, a unique beginning of it, or its folder; left out, the newest live run. With
attach, show and ctl it may be on another machine, reached through ssh: [USER@]HOST:RUN.
Runs live in --runs-dir, else $FTTUI_RUNS, else ./runs.

exit codes:
  0    done; for run --headless: the run finished or was stopped on request
  1    another error
  2    the configuration or the command line is wrong
  3    no such run
  4    the run's hub speaks another protocol version
  5    the run belongs to another user
  6    no engine works on the run
  7    a command was rejected or failed
  8    the model cannot be loaded or does not fit
  9    the data cannot be used
  10   a checkpoint is missing or damaged
  11   training failed
  124  ctl: no outcome within --timeout
  127  another machine was reached, but fttui was not found there
  130  interrupted
  255  another machine could not be reached, or refused the login
"""


class _VersionAction(argparse.Action):
    """Looks the version up only when asked: reading package data takes a while."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object, **__: object) -> None:
        from importlib.metadata import version

        print(f"fttui {version('fttui')}")
        parser.exit()


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = Parser(
        prog="fttui",
        description="Fine-tune an LLM adapter and watch and steer it from the terminal.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_VersionAction, nargs=0, help="show the version")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    modules = (
        run,
        attach,
        control,
        ls,
        export,
        check,
        lr_find,
        profile,
        doctor,
        bridge,
    )
    for module in modules:
        module.add_commands(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand; returns the exit code."""
    options = build_parser().parse_args(arguments)
    handler: Callable[[argparse.Namespace], int] = options.handler
    try:
        return handler(options)
    except FttuiError as error:
        print(f"fttui: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe left, as `| head` does; Python must not complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _refused(error)


def _refused(error: OSError) -> int:
    """Say in words what the system did not let us do, and with which file."""
    if error.filename is None or error.strerror is None:
        print(f"fttui: {error}", file=sys.stderr)
        return FttuiError.exit_code
    theirs = isinstance(error, PermissionError) and _is_anothers(str(error.filename))
    why = "belongs to another user" if theirs else "cannot be used"
    print(f"fttui: {error.filename} {why}: {error.strerror.lower()}", file=sys.stderr)
    return NotOwner.exit_code if theirs else FttuiError.exit_code


def _is_anothers(path: str) -> bool:
    """Of a path, or of the folder above it that hides whose it is."""
    while not os.path.lexists(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    return os.lstat(path or ".").st_uid != os.geteuid()


if __name__ == "__main__":
    sys.exit(main())
