"""The `fttui` command line; heavy modules are imported only by the subcommand that needs them."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from fttui.engine.errors import FttuiError, NotOwner
from fttui.engine.run.run_dir import runs_root

from .options import Parser, say, warn
from .output import escaped_output

INTERRUPTED = 130
MODULES: dict[str, tuple[str, ...]] = {
    ".run": ("run",),
    ".execute": ("exec",),
    ".attach": ("attach", "show"),
    ".control": ("ctl",),
    ".ls": ("ls", "events"),
    ".reports.report": ("report",),
    ".outward.export": ("export",),
    ".experiments.bench": ("bench",),
    ".outward.sync": ("sync",),
    ".outward.prometheus": ("prometheus",),
    ".outward.web": ("web",),
    ".check": ("check",),
    ".data": ("data",),
    ".mine": ("mine",),
    ".preflight.init_config": ("init",),
    ".preflight.import_config": ("import",),
    ".temporary_runs.lr_find": ("lr-find",),
    ".temporary_runs.profile": ("profile",),
    ".experiments.race": ("race",),
    ".sweep.sweep": ("sweep",),
    ".experiments.recipe": ("recipe",),
    ".experiments.diff": ("diff",),
    ".cluster.launch": ("launch",),
    ".doctor": ("doctor",),
    ".shell.completion": ("completion",),
    ".bridge": ("bridge",),
    ".agents.mcp": ("mcp",),
}
"""The subcommands that each module registers, in the order of the help.

A command line imports only the module of its command.
"""

_EPILOG = """\
Without a command, fttui opens the app on the list of runs.
RUN is a run's name, a unique prefix of it, or its folder. Without it, attach and ctl take the
newest live run, events, report, export, bench, race, recipe, sync, prometheus and web the newest
run.
attach, show and ctl also take a run on a remote host, through ssh: [USER@]HOST:RUN.
Run folders are in --runs-dir; the default is $FTTUI_RUNS, else ./runs.

exit codes:
  0    success; for run --headless: the run finished or was stopped on request
  1    any other error
  2    the configuration or the command line is invalid
  3    run not found
  4    another version of fttui started the run, with another protocol or a newer run folder
  5    the run belongs to another user
  6    no engine is running for the run
  7    the command was rejected or failed
  8    the model cannot be loaded or does not fit in memory
  9    the data cannot be used, or a finding needs your consent (data.accept)
  10   a checkpoint is missing or damaged
  11   training failed
  12   base model, tokenizer, chat template or data changed since the checkpoint
  13   the run ended, but its last state could not be saved
  124  ctl: no outcome within --timeout
  127  fttui was not found on the remote host
  130  interrupted
  143  run --job: a signal stopped the run before its end
  255  ssh could not connect to the remote host, or the login was refused
"""


class _VersionAction(argparse.Action):
    """The `--version` option; it reads the package metadata, which is slow, only when used."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object, **__: object) -> None:
        from importlib.metadata import version

        say(f"fttui {version('fttui')}")
        parser.exit()


class _AsciiAction(argparse.Action):
    """The `--ascii` option, which is `FTTUI_ASCII=1` in the environment."""

    def __call__(self, *_: object, **__: object) -> None:
        os.environ["FTTUI_ASCII"] = "1"


class _RunsDirAction(argparse.Action):
    """The `--runs-dir` option before a command, which is `FTTUI_RUNS` in the environment."""

    def __call__(self, _p: object, _n: object, folder: object, *_: object) -> None:
        os.environ["FTTUI_RUNS"] = str(folder)


def build_parser(command: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of the whole command line.

    Args:
        command: the command that will be parsed, whose module alone is imported then; None, or a
            word that is no command, imports all.
    """
    parser = Parser(
        prog="fttui",
        usage="fttui [-h] [--version] [--ascii] [--runs-dir D] [COMMAND ...]",
        description="Fine-tune an LLM; watch and control the run in the terminal.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_VersionAction, nargs=0, help="show the version")
    parser.add_argument(
        "--ascii", action=_AsciiAction, nargs=0, help="draw the app with ASCII characters only"
    )
    parser.add_argument(
        "--runs-dir",
        action=_RunsDirAction,
        dest=argparse.SUPPRESS,
        metavar="D",
        help="folder with the runs (default: $FTTUI_RUNS, else ./runs)",
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", prog="fttui")
    asked = [name for name, own in MODULES.items() if command in own]
    for name in asked or MODULES:
        import_module(name, __package__).add_commands(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand, or without one open the list of runs; return the exit code.

    Raises:
        SystemExit: the arguments are invalid (exit code 2), or ask for help or the version (0).
    """
    with escaped_output():
        return _run(arguments)


def _run(arguments: Sequence[str] | None) -> int:
    words = sys.argv[1:] if arguments is None else arguments
    parser = build_parser(words[0] if words else None)
    options = parser.parse_args(words)
    if not hasattr(options, "handler") and not (sys.stdin.isatty() and sys.stdout.isatty()):
        parser.error("the following arguments are required: COMMAND")
    handler: Callable[[argparse.Namespace], int] = getattr(options, "handler", _open_run_list)
    try:
        return handler(options)
    except FttuiError as error:
        warn(f"fttui: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except EOFError:
        warn("fttui: the input ended before a question was answered; nothing was started")
        return INTERRUPTED
    except BrokenPipeError:
        # The reader closed the pipe, as `| head` does; Python must not report an error at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (OSError, ModuleNotFoundError) as error:
        return _refused(error) if isinstance(error, OSError) else _without_module(error)


def _without_module(error: ModuleNotFoundError) -> int:
    """Report that a package which is installed needs another one; return the exit code.

    Raises:
        ModuleNotFoundError: it is a module of fttui that is missing.
    """
    name = (error.name or "fttui").partition(".")[0]
    if name == "fttui":
        raise error
    warn(
        f"fttui: the Python package {name} is missing, which an installed package imports; "
        f"install it, such as with: {sys.executable} -m pip install {name}"
    )
    return FttuiError.exit_code


def _open_run_list(_options: argparse.Namespace) -> int:
    """Open the app on the list of runs, which is what `fttui` alone does."""
    from .attach import open_run_list

    return open_run_list(runs_root())


def _refused(error: OSError) -> int:
    """Print which file the system refused and why; return the exit code."""
    if error.filename is None or error.strerror is None:
        warn(f"fttui: {error}")
        return FttuiError.exit_code
    theirs = isinstance(error, PermissionError) and _is_anothers(str(error.filename))
    why = "belongs to another user" if theirs else "cannot be used"
    warn(f"fttui: {error.filename} {why}: {error.strerror.lower()}")
    return NotOwner.exit_code if theirs else FttuiError.exit_code


def _is_anothers(path: str) -> bool:
    """Whether another user owns the path, or the nearest parent folder that can be read."""
    while not os.path.lexists(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    return os.lstat(path or ".").st_uid != os.geteuid()


if __name__ == "__main__":
    sys.exit(main())
