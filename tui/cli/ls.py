"""`ls` and `events`: list runs, print a journal."""

from __future__ import annotations

import argparse
import math
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from shlex import quote
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from fttui.engine.run.journal import DamagedPart, FrameReader, read_past_damage
from fttui.engine.run.processes.marks import read_engine
from fttui.engine.run.run_dir import RunDirectory, require_runs_folder, runs_root
from fttui.engine.run.run_index import RunSummary, list_runs

from ..text import format as fmt
from ..text.control_characters import one_line
from .options import (
    Commands,
    add_remote_cmd,
    add_run,
    add_runs_dir,
    chosen_run,
    require_hosts,
    say,
    say_json,
    warn,
)

if TYPE_CHECKING:
    from ..connection.ssh.remote_runs import RemoteRuns

_FOLLOW_POLL_S = 0.1


def add_commands(commands: Commands) -> None:
    """Register the subcommands `ls` and `events` of `fttui`."""
    listing = commands.add_parser("ls", help="list runs, newest first")
    listing.add_argument("hosts", metavar="[USER@]HOST", nargs="*", help="list remote hosts' runs")
    listing.add_argument("--json", action="store_true", help="print a JSON array")
    add_runs_dir(listing)
    add_remote_cmd(listing)
    listing.set_defaults(handler=_list)
    events = commands.add_parser("events", help="print a run's journal as JSON lines")
    add_run(events)
    events.add_argument(
        "--since", type=int, default=0, metavar="SEQ", help="only events numbered above SEQ"
    )
    events.add_argument("--follow", action="store_true", help="keep printing until the engine ends")
    events.set_defaults(handler=_events)


def _list(options: argparse.Namespace) -> int:
    root = runs_root(options.runs_dir)
    if options.hosts:
        return _list_there(options)
    require_runs_folder(root)
    runs = list_runs(root)
    if options.json:
        say_json([_plain(run) for run in runs], indent=2)
    elif not runs:
        say(f"no runs in {root}; start one with: fttui run CONFIG")
    else:
        print_runs(runs)
    return 0


def _list_there(options: argparse.Namespace) -> int:
    """List the runs of remote hosts; a host that cannot be reached does not hide the others.

    Return the exit code, which is that of the first host that could not be reached, or 0.
    """
    from ..connection.ssh.remote_runs import list_remote_runs

    require_hosts(options.hosts, options)
    found = list_remote_runs(options.hosts, options.remote_cmd)
    if options.json:
        plain = [{"host": host, **_plain(run)} for host, runs in found.runs for run in runs]
        say_json(plain, indent=2)
    else:
        print_remote_runs(found)
    for error in found.errors:
        warn(f"fttui: {error}")
    return found.errors[0].exit_code if found.errors else 0


def with_hosts(found: RemoteRuns) -> list[RunSummary]:
    """Return the runs of all hosts that answered, with the host before each id and path."""
    return [
        replace(run, id=f"{host}:{run.id}", path=f"{host}:{run.path}")
        for host, runs in found.runs
        for run in runs
    ]


def print_remote_runs(found: RemoteRuns) -> None:
    """Print a table of the runs of all hosts that answered, or say that they have none.

    If no host has answered, nothing is printed.
    """
    if runs := with_hosts(found):
        print_runs(runs)
    elif found.runs:
        hosts = " and ".join(host for host, _ in found.runs)
        say(f"no runs on {hosts}; start one there with: fttui run CONFIG")


def print_runs(runs: list[RunSummary], *, numbered: bool = False) -> None:
    """Print a table of runs, cut to the terminal's width if output goes to a terminal.

    With `numbered`, each row begins with its number, from 1 on.
    """
    now = time.time()
    runs = [replace(run, id=one_line(run.id), error=one_line(_first(run.error))) for run in runs]
    width = max((len(run.id) for run in runs), default=3)
    gap = " " * 4 if numbered else ""
    say(f"{gap}{'RUN':<{width}}  {'STATE':<13}  {'STEP':>13}  {'LOSS':>8}  LAST EVENT")
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    for index, run in enumerate(runs, 1):
        place = f"{index:>2}  " if numbered else ""
        say(fmt.clip_to(f"{place}{_row(run, width, now)}", room))


def _first(text: str) -> str:
    return next(iter(text.splitlines()), "")


def _row(run: RunSummary, width: int, now: float) -> str:
    if run.unreadable:
        return f"{run.id:<{width}}  {'unreadable':<13}  {one_line(run.unreadable)}"
    step = f"{run.step:,}/{run.total_steps:,}" if run.total_steps else f"{run.step:,}"
    last = f"{fmt.duration(now - run.last_time)} ago" if run.last_time else "none"
    error = f"  {run.error}" if run.error else ""
    error = error or (f"  on {run.engine_host}" if run.engine_host else "")
    loss = fmt.number(run.loss)
    return f"{run.id:<{width}}  {run.state_text:<13}  {step:>13}  {loss:>8}  {last}{error}"


def _plain(summary: RunSummary) -> Any:
    return finite(msgspec.to_builtins(summary))


def _events(options: argparse.Namespace) -> int:
    run = chosen_run(options, live=False)
    reader = FrameReader(run.journal)
    printed = _EventPrinter(options.since, flush=options.follow)
    for payload in _payloads(run, reader, follow=options.follow):
        printed.print(payload)
    if has_ended(run):
        for part in _rest(run, reader.offset):
            if isinstance(part, bytes):
                printed.print(part)
            else:
                printed.note_damage(run, part)
    printed.conclude(run)
    return 0


class _EventPrinter:
    """Prints records as JSON, and counts the frames that are not records."""

    def __init__(self, since: int, *, flush: bool) -> None:
        self._since = since
        self._flush = flush
        self._others = 0

    def print(self, payload: bytes) -> None:
        """Print a record as JSON; if the frame is not a record, count it."""
        try:
            line = event_line(payload)
        except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError):
            self._others += 1
            return
        if line["seq"] > self._since:
            say_json(line, flush=self._flush)

    def note_damage(self, run: RunDirectory, part: DamagedPart) -> None:
        """Print to standard error which part of the journal is damaged and left out."""
        sys.stdout.flush()
        warn(
            f"fttui: {part.size_bytes:,} bytes of {run.journal}, from byte {part.offset:,}, are "
            f"damaged and left out; resuming moves them to a new file: "
            f"fttui run --resume {quote(run.id)}"
        )

    def conclude(self, run: RunDirectory) -> None:
        """Warn if frames of the journal were left out because they cannot be read as records."""
        if self._others:
            sys.stdout.flush()
            warn(
                f"fttui: {self._others:,} frames of {run.journal} cannot be read as records and "
                "are left out"
            )


def _rest(run: RunDirectory, offset: int) -> Iterator[bytes | DamagedPart]:
    """Yield the frames and the damaged parts of the journal from a byte offset on, in their order.

    Use it only for a run that has ended: the end of a growing journal looks like damage.
    """
    with suppress(FileNotFoundError):
        yield from read_past_damage(run.journal, offset)


def _payloads(run: RunDirectory, reader: FrameReader, *, follow: bool) -> Iterator[bytes]:
    while True:
        engine = read_engine(run)
        alive = engine is not None and engine.alive
        yield from reader
        if not (follow and alive):
            return
        time.sleep(_FOLLOW_POLL_S)


def event_line(payload: bytes) -> dict[str, Any]:
    """Return an encoded journal record as the object that `fttui events` prints.

    It has the sequence number, time (Unix seconds), step, timeline, kind and fields of the event,
    also for kinds that this version does not know.

    Raises:
        ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError: the
            payload is not a record.
    """
    seq, when, step, timeline, event, *_ = msgspec.msgpack.decode(payload)
    place = {"seq": int(seq), "time": finite(when), "step": step, "timeline": timeline}
    fields = {key: finite(value) for key, value in event.items() if key != "k"}
    return {**place, "type": event["k"], **fields}


def finite(value: Any) -> Any:
    """Return the value with NaN and infinities as strings, because JSON cannot represent them."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: finite(child) for key, child in value.items()}
    if isinstance(value, list):
        return [finite(child) for child in value]
    return value


def has_ended(run: RunDirectory) -> bool:
    """Whether no engine works on a run."""
    engine = read_engine(run)
    return engine is None or not engine.alive
