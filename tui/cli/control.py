"""`ctl`: send one command to a live run; the exit code reports its outcome."""

from __future__ import annotations

import argparse
import asyncio
import math
import textwrap
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from fttui.engine.errors import CommandRejected, ConfigError, EngineGone, NoSuchRun
from fttui.engine.protocol.command_args import CommandError
from fttui.engine.protocol.command_kinds import MOST_RAISED
from fttui.engine.protocol.commands import (
    COMMANDS,
    AnyCommand,
    Rollback,
    describe_command,
    parse_command,
    slip,
)
from fttui.engine.protocol.events import Record
from fttui.engine.protocol.settings import LearningRate
from fttui.engine.run.processes.marks import read_engine, read_engine_status
from fttui.engine.run.processes.ownership import require_own_process
from fttui.engine.run.run_dir import RunDirectory, runs_root
from fttui.engine.run.run_index import find_run, learning_rate, read_ends

from ..connection.ssh.remote_host import RemoteHost, is_remote, parse_target
from ..view_model.command_effect import change, effect
from .options import Commands, add_remote_cmd, add_runs_dir, say, say_json, warn

if TYPE_CHECKING:
    from ..connection.command_outcome import CommandOutcome
    from ..view_model.connection_port import Session

_DEFAULT_TIMEOUT_S = 60.0
_NO_OUTCOME = 124
_YES = "; if you mean it, add --yes"
_FIRST_WORDS = frozenset(spec.verb.split()[0] for spec in COMMANDS)
_EXIT_CODES = {
    "applied": 0,
    "failed": CommandRejected.exit_code,
    "rejected": CommandRejected.exit_code,
    "unanswered": EngineGone.exit_code,
    "pending": _NO_OUTCOME,
}


def add_commands(commands: Commands) -> None:
    """Register the subcommand `ctl` of `fttui`."""
    parser = commands.add_parser(
        "ctl",
        help="send one command to a live run and wait for its outcome",
        usage="fttui ctl [--json] [--reason T] [--timeout S] [--take] [--yes] [[HOST:]RUN] "
        "COMMAND…",
        epilog=f"commands:\n{_table()}\n\nexit codes: 0 applied, 2 invalid command, 6 no engine is "
        "running, 7 rejected or failed, 124 no outcome within --timeout\n"
        f"A learning rate more than ×{MOST_RAISED:g} the present one is rejected without --yes.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="[RUN] COMMAND",
        help="such as: my-run lr scale 0.5; default RUN: the newest live run",
    )
    add_runs_dir(parser)
    add_remote_cmd(parser)
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")
    parser.add_argument(
        "--reason", default="", metavar="T", help="why the command is sent, for the journal"
    )
    parser.add_argument(
        "--timeout",
        type=_seconds,
        default=_DEFAULT_TIMEOUT_S,
        metavar="S",
        help="seconds to wait for the outcome, including the connection to a remote host",
    )
    parser.add_argument(
        "--take", action="store_true", help="take control for this command from whoever has it"
    )
    parser.add_argument(
        "--yes",
        action="store_true",
        help=f"allow a learning rate of more than ×{MOST_RAISED:g} the present one",
    )
    parser.set_defaults(handler=_send)


def _seconds(text: str) -> float:
    """Parse the seconds of `--timeout`, which must be finite so that no script waits forever.

    Raises:
        argparse.ArgumentTypeError: the text is not a finite number above 0.
    """
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a number of seconds above 0")
    return seconds


def _send(options: argparse.Namespace) -> int:
    deadline = time.monotonic() + options.timeout
    try:
        session, command = _session(options)
    except _Unconfirmed as refused:
        return _report(refused.command, _refused(refused), as_json=options.json)
    from ..connection.command_outcome import send_command  # deferred: it loads asyncio and ZeroMQ

    left_s = max(0.0, deadline - time.monotonic())
    outcome = send_command(
        session, command, reason=options.reason, timeout_s=left_s, take=options.take
    )
    return _report(command, outcome, as_json=options.json)


def _report(command: AnyCommand, outcome: CommandOutcome, *, as_json: bool) -> int:
    """Print the outcome of a command and return the exit code."""
    if as_json:
        say_json(
            {key: value for key, value in asdict(outcome).items() if key != "answers" or value}
        )
    else:
        tell = say if outcome.status == "applied" else warn
        tell("\n\n".join([sentence(command, outcome), *answers(outcome)]))
    return _EXIT_CODES[outcome.status]


def _refused(refused: _Unconfirmed) -> CommandOutcome:
    from ..connection.command_outcome import CommandOutcome  # deferred: it loads asyncio

    words = describe_command(refused.command)
    return CommandOutcome(id="", command=words, status="rejected", reason=str(refused))


class _Unconfirmed(CommandRejected):
    """A command looks like a typing error and was not confirmed."""

    def __init__(self, command: AnyCommand, why: str) -> None:
        super().__init__(why)
        self.command = command


def require_confirmed(
    command: AnyCommand, now: LearningRate, *, yes: bool = False, way_out: str = _YES
) -> None:
    """Refuse a command that looks like a typing error, unless the user has confirmed it.

    Args:
        command: the command.
        now: the learning rate in force.
        yes: whether the user has confirmed it.
        way_out: the end of the refusal, which says how to confirm it; empty without a way.

    Raises:
        CommandRejected: it looks like one, and `yes` is false; the text says why.
    """
    why = None if yes else slip(command, now)
    if why is not None:
        raise _Unconfirmed(command, f"{why}{way_out}")


def _session(options: argparse.Namespace) -> tuple[Session, AnyCommand]:
    """Return a session with the run that the words name, and the command that they hold.

    Raises:
        FttuiError: there is no such run or command, or no engine of this user works on the run.
    """
    words = options.words
    if words and is_remote(words[0]) and _parsed_or_none(words) is None:
        return _session_there(words, options)
    run, command = _addressed(words, runs_root(options.runs_dir))
    require_engine(run)
    require_confirmed(command, learning_rate(run), yes=options.yes)
    if isinstance(command, Rollback) and not options.json:
        for line in rollback_cost(read_ends(run.journal), command):
            warn(line)
    from ..connection.local import LocalSession

    return LocalSession(run, one_shot=True), command


def rollback_cost(records: Sequence[Record], command: Rollback) -> Iterator[str]:
    """Yield what a rollback discards: steps, time, energy and money, as far as they are known.

    Nothing is yielded for a checkpoint that is not among the records, the end of the journal.
    """
    from ..dialogs.command_cost import given_up, meant
    from ..text.usage import energy_and_money
    from ..view_model.app_state import AppState
    from ..view_model.reducer import apply_many
    from ..view_model.run_view import RunView

    state = AppState(run=apply_many(RunView(), records))
    found = meant(state, command)
    if found is not None:
        lost = given_up(state, found)
        spent = energy_and_money(lost.used, state.run.tally.price) if lost.used else []
        yield f"the rollback discards {', '.join([lost.words, *spent])}"


def _session_there(words: list[str], options: argparse.Namespace) -> tuple[Session, AnyCommand]:
    target = parse_target(words[0])
    if not words[1:]:
        raise ConfigError(f"no command given for {words[0]}; commands:\n{_table()}")
    command = _parsed(words[1:])
    from ..connection.remote import RemoteSession
    from ..connection.ssh.ssh_connection import SshConnection, answered_in_time

    host = RemoteHost(target.host, options.remote_cmd)
    session = RemoteSession(host, one_shot=True)

    async def connect() -> None:
        connection = SshConnection(host, may_prompt=True)
        connection.attach()
        try:
            async with answered_in_time(target.host, options.timeout):
                await session.open(connection, target.run)
            if not session.engine_alive:
                raise EngineGone(f"no engine is running for {session.run_id} on {target.host}")
            require_confirmed(command, session.learning_rate, yes=options.yes)
        except BaseException:
            await connection.close()
            raise
        connection.detach()

    asyncio.run(connect())
    return session, command


def _addressed(words: list[str], root: Path) -> tuple[RunDirectory, AnyCommand]:
    """Return the run that the words name and the command that they hold, in the runs folder `root`.

    If all words together are a command, it is for the newest live run; else the first word names
    the run. Words that could be either are read as a run if there is one of that name.

    Raises:
        ConfigError: no command is given, or it is not valid.
        NoSuchRun: no run or several runs match.
    """
    if not words:
        raise ConfigError(f"no command given; use: fttui ctl [RUN] COMMAND; commands:\n{_table()}")
    whole = _parsed_or_none(words)
    if whole is not None and _parsed_or_none(words[1:]) is None:
        return find_run(root, None, live=True), whole
    try:
        run = find_run(root, words[0])
    except NoSuchRun:
        if whole is None and (words[0] in _FIRST_WORDS or not words[1:]):
            _parsed(words)
        if whole is None:
            raise
        return find_run(root, None, live=True), whole
    if not words[1:]:
        raise ConfigError(f"no command given for {run.id}; commands:\n{_table()}")
    return run, _parsed(words[1:])


def _table() -> str:
    """Return the forms of all commands with their help, one command per line."""
    width = max(len(spec.usage) for spec in COMMANDS)
    return "\n".join(f"  {spec.usage:<{width}}  {spec.help}" for spec in COMMANDS)


def _parsed_or_none(words: list[str]) -> AnyCommand | None:
    try:
        return parse_command(words)
    except CommandError:
        return None


def _parsed(words: list[str]) -> AnyCommand:
    try:
        return parse_command(words)
    except CommandError as error:
        raise ConfigError(textwrap.fill(str(error), 100)) from None


def require_engine(run: RunDirectory) -> None:
    """Check that an engine on this machine is working on a run.

    Raises:
        EngineGone: none is working on it, or the run was started on another machine.
        NotOwner: the engine belongs to another user.
    """
    if host := read_engine_status(run).host:
        raise EngineGone(
            f"{run.id} was started on {host}; send the command there with: "
            f"fttui ctl {quote(f'{host}:{run.path}')} COMMAND"
        )
    engine = read_engine(run)
    if engine is None or not engine.alive:
        raise EngineGone(
            f"no engine is running for {run.id}; view it with: fttui show {quote(run.id)}, or "
            f"{run.resume_hint}"
        )
    require_own_process(engine, "the engine")


def answers(outcome: CommandOutcome) -> list[str]:
    """Return the answers to the prompt of a chat, each below the name of who has given it."""
    return [f"{who}:\n{text}" for who, text in outcome.answers.items()]


def sentence(command: AnyCommand, outcome: CommandOutcome) -> str:
    """Return the outcome of a command as one line, such as `applied from step 641: clip 0.5`."""
    if outcome.status == "applied":
        what = effect(command, outcome.step or 0, "step {}")
        why = f"; {outcome.reason}" if outcome.reason else ""
        return f"{what}: {outcome.command}{change(command, outcome.old, outcome.new)}{why}"
    at = f" at step {outcome.step}" if outcome.step is not None else ""
    return f"{outcome.status}{at}: {outcome.command}: {outcome.reason}"
