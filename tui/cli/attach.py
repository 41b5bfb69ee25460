"""`attach` and `show`: open a run in the app, on this machine or on a remote host."""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from fttui.engine.errors import ConfigError, EngineGone, NewerRun, NoSuchRun
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.run.run_index import RunSummary, list_known_runs, summarize

from .ls import print_remote_runs, print_runs, with_hosts
from .options import Commands, add_remote_cmd, add_runs_dir, chosen_run, require_hosts, say, warn

if TYPE_CHECKING:
    from ..connection.remote import RemoteSession
    from ..connection.run_list import RunListing
    from ..connection.ssh.remote_host import RemoteHost, RemoteTarget
    from ..connection.ssh.ssh_connection import SshConnection


def add_commands(commands: Commands) -> None:
    """Register the subcommands `attach` and `show` of `fttui`."""
    attach = commands.add_parser("attach", help="watch and control a live run, here or over ssh")
    attach.add_argument(
        "run",
        metavar="RUN | [USER@]HOST:[RUN]",
        nargs="*",
        help="default: the newest live run; one or more HOSTs: choose from their runs",
    )
    attach.add_argument(
        "--read-only", action="store_true", help="watch the run without sending commands"
    )
    show = commands.add_parser("show", help="view a finished or crashed run")
    show.add_argument("run", metavar="RUN", help="a run, here or as [USER@]HOST:RUN")
    for parser, handler in ((attach, _attach), (show, _show)):
        add_runs_dir(parser)
        add_remote_cmd(parser)
        parser.set_defaults(handler=handler)


def _attach(options: argparse.Namespace) -> int:
    if len(options.run) > 1:
        require_hosts(options.run, options)
        return _open_on_hosts(options.run, options.remote_cmd, read_only=options.read_only)
    options.run = options.run[0] if options.run else None
    return _open(options, live=True, read_only=options.read_only)


def _show(options: argparse.Namespace) -> int:
    return _open(options, live=False, read_only=True)


def _open(options: argparse.Namespace, *, live: bool, read_only: bool) -> int:
    from ..connection.ssh.remote_host import is_remote, parse_target

    if options.run and is_remote(options.run):
        return _open_remote(parse_target(options.run), options.remote_cmd, read_only=read_only)
    try:
        run = chosen_run(options, live=live)
    except NewerRun:
        raise
    except NoSuchRun as no_run:
        if not options.run or "/" in options.run:
            raise
        if not _is_host(options):
            way = f"for a remote host of that name, write: fttui attach {quote(options.run)}:"
            raise NoSuchRun(f"{no_run}\n{way}") from None
        return _open_remote(parse_target(options.run), options.remote_cmd, read_only=read_only)
    return open_app(run, read_only=read_only)


def _is_host(options: argparse.Namespace) -> bool:
    """Whether to take RUN for the name of a host: a known one, or any if `--remote-cmd` is given.

    Otherwise a mistyped name of a run would start an ssh login.
    """
    from ..connection.ssh.hosts import is_known_host

    return options.remote_cmd is not None or is_known_host(options.run)


def require_terminal(way_out: str) -> None:
    """Check that the app has a terminal to draw in.

    Raises:
        ConfigError: standard input or output is not a terminal; the text ends with `way_out`, which
            says what to use instead.
    """
    if not at_terminal():
        raise ConfigError(
            f"the app needs a terminal, and standard input or output is not one; {way_out}"
        )


def at_terminal() -> bool:
    """Whether standard input and output are a terminal."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def open_run_list(root: Path) -> int:
    """Open the app on the list of the runs known on this machine; return the exit code.

    Raises:
        NoSuchRun: There is none yet; the text says how to start one.
    """
    known = [s for s in list_known_runs(root) if not s.unreadable]
    if not known:
        raise NoSuchRun(
            f"no run in {root}, and none is known on this machine; start one with: fttui run "
            "CONFIG, open those of a remote host with: fttui attach HOST:, or see: fttui --help"
        )
    here = next((s for s in known if not s.engine_host), known[0])
    run = RunDirectory(Path(here.path))
    return open_app(run, read_only=bool(here.engine_host), first="runs")


def open_app(run: RunDirectory, *, read_only: bool = False, first: str = "dashboard") -> int:
    """Show a run of this machine in the app until the user leaves; return the exit code.

    A run that the user chooses from the list in the app is opened next. `first` is the screen that
    the app begins with.

    Raises:
        ConfigError: there is no terminal.
        EngineGone: the run was started on another machine, and `read_only` is false.
    """
    if not read_only:
        require_here(run)
    require_terminal(f"to follow the run without one, use: fttui events {quote(run.id)} --follow")
    gc.disable()  # objects made at start are permanent; the app enables the collector later
    from ..app import run_app
    from ..connection.factory import engine_runs, open_session

    app = run_app(open_session(run, read_only), run=run, first=first)
    if app.wanted is not None:
        return _open_listed(app.wanted, read_only=read_only and first != "runs")
    if engine_runs(run):
        say(f"training continues; attach again with: fttui attach {quote(run.id)}")
    else:
        say(f"open the run again with: fttui show {quote(run.id)}")
    return app.return_value or 0


def require_here(run: RunDirectory) -> None:
    """Check that the engine of a run was not started on another machine.

    Raises:
        EngineGone: it was started there; the text says how to attach.
    """
    summary = summarize(run)
    if summary.engine_host:
        raise EngineGone(
            f"{run.id} was started on {summary.engine_host}; attach to it there with: fttui attach "
            f"{quote(f'{summary.engine_host}:{run.path}')}, or view what it has written so "
            "far with: "
            f"fttui show {quote(str(run.path))}"
        )


def _open_listed(item: RunListing, *, read_only: bool) -> int:
    """Open the run that the user chose from the list in the app; return the exit code."""
    from ..connection.ssh.remote_host import parse_target

    if not item.host:
        return open_app(RunDirectory(Path(item.summary.path)), read_only=read_only)
    target = parse_target(f"{item.host}:{item.summary.path}")
    return _open_remote(target, None, read_only=read_only)


def _open_remote(target: RemoteTarget, remote_cmd: str | None, *, read_only: bool) -> int:
    """Open a run of a remote host, which the user chooses if the target names none.

    With neither a name nor a terminal, print the runs of the host. Return the exit code.
    """
    from ..connection.remote import RemoteSession
    from ..connection.ssh.hosts import remember_host
    from ..connection.ssh.remote_host import RemoteHost

    if target.run is not None:
        require_terminal(
            f"for one command, use: fttui ctl {quote(f'{target.host}:{target.run}')} COMMAND"
        )
    host = RemoteHost(target.host, remote_cmd)
    session = RemoteSession(host, read_only=read_only)
    if not asyncio.run(_connect(session, host, target)):
        return 0
    gc.disable()  # as in open_app
    from ..app import run_app

    remember_host(target.host)
    app = run_app(session)
    if app.wanted is not None:
        return _open_listed(app.wanted, read_only=read_only)
    say(f"attach again with: fttui attach {quote(f'{target.host}:{session.run_id}')}")
    return app.return_value or 0


async def _connect(session: RemoteSession, host: RemoteHost, target: RemoteTarget) -> bool:
    """Connect the session to the run before the app starts, while ssh can still ask for a password.

    Return whether it is connected; it is not if only a list of runs was printed.

    Raises:
        FttuiError: the host cannot be reached, has no such run, or cannot serve it.
    """
    from ..connection.ssh.ssh_connection import SshConnection, answered_in_time

    connection = SshConnection(host, may_prompt=True)
    connection.attach()
    try:
        async with answered_in_time(target.host):
            await connection.greeted()
        wanted = target.run or await _chosen(connection, target.host)
        if wanted is None:
            await connection.close()
            return False
        async with answered_in_time(target.host):
            await session.open(connection, wanted)
    except BaseException:
        await connection.close()
        raise
    connection.detach()
    return True


async def _chosen(connection: SshConnection, host: str) -> str | None:
    """Return the path of the run that the user picks on a remote host, or of the only one.

    The user may also type a name, which is returned as typed. Without a terminal, print the runs
    and return None.

    Raises:
        NoSuchRun: the host has no runs.
    """
    from ..connection.ssh.ssh_connection import answered_in_time

    async with answered_in_time(host):
        runs = await connection.runs()
    if not runs:
        raise NoSuchRun(f"no runs on {host}; start one there with: fttui run CONFIG")
    if not at_terminal():
        print_runs(runs)
        return None
    return runs[0].path if len(runs) == 1 else _ask_which(runs, host)


def _open_on_hosts(hosts: list[str], remote_cmd: str | None, *, read_only: bool) -> int:
    """Let the user choose among the runs of several hosts and open the run; return the exit code.

    A host that cannot be reached does not hide the others. Without a terminal, print the runs. If
    nothing was opened, the code is that of the first host that could not be reached, or 0.

    Raises:
        NoSuchRun: the answer is neither a number in the list nor HOST:RUN.
    """
    from ..connection.ssh.remote_host import parse_target
    from ..connection.ssh.remote_runs import list_remote_runs

    found = list_remote_runs(hosts, remote_cmd)
    for error in found.errors:
        warn(f"fttui: {error}")
    shown = with_hosts(found)
    if not shown or not at_terminal():
        print_remote_runs(found)
        return found.errors[0].exit_code if found.errors else 0
    wanted = _ask_which(shown, " and ".join(hosts))
    if ":" not in wanted:
        raise NoSuchRun(f"{wanted} is not a number in the list; type one, or HOST:RUN")
    return _open_remote(parse_target(wanted), remote_cmd, read_only=read_only)


def _ask_which(runs: list[RunSummary], host: str) -> str:
    """Return the path of the run whose number the user types, or a name as typed.

    An empty answer takes the first live run of the list, or the first one if none is live.
    """
    print_runs(runs, numbered=True)
    live = next((i for i, run in enumerate(runs, 1) if not run.state.ended), 1)
    answer = input(f"which run of {host}? [{live}] ").strip() or str(live)
    if answer.isdecimal() and 1 <= int(answer) <= len(runs):
        return runs[int(answer) - 1].path
    return answer
