"""Lists the runs of this machine with their status, and finds one by name, prefix or folder."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path

import msgspec

from ..errors import NewerRun, NoSuchRun
from ..protocol.codec import DecodeError, decode_readable, peek_seq
from ..protocol.events import Record
from ..protocol.settings import LearningRate
from ..protocol.states import RunState
from ..protocol.usage.amounts import Price, Usage
from .folder.open_folder import open_plain
from .journal import FrameReader, read_past_damage, valid_frames
from .journal_summary import JournalSummary, summarize_records
from .known_runs import known_runs
from .processes.marks import read_engine_status
from .run_dir import RunDirectory, require_runs_folder, resume_command

_TAIL_BYTES = 256 * 1024
LISTING = "fttui ls"
"""The command that lists the runs of this machine."""

NEVER_STARTED = "did not start"
"""The state of a run whose engine was never started, as it is listed."""
_TIME = re.compile(r"-\d[\d-]*$")
"""The date and time at the end of a run's id."""


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The summary of one run, as `fttui ls` lists it."""

    id: str
    name: str
    path: str
    created: float
    state: RunState
    step: int = 0
    total_steps: int = 0
    timeline: int = 1
    loss: float | None = None
    last_time: float | None = None
    """Unix time of the newest record; None if the journal is empty."""
    error: str = ""
    engine_host: str = ""
    """The other machine that the engine was started on; empty if that is the machine that lists."""
    usage: Usage | None = None
    """What the run has used, over all of its starts; None if it could not be read."""
    price: Price | None = None
    unreadable: str = ""
    """Why nothing is known about the run; empty if it could be read."""
    never_started: bool = False
    """Whether the process that created it ended before it started an engine."""

    @property
    def state_text(self) -> str:
        """The state as it is listed."""
        return NEVER_STARTED if self.never_started else self.state.value


def list_runs(root: Path) -> list[RunSummary]:
    """Return the runs in a folder, newest first; those that cannot be read say why and are last."""
    return _summaries(RunDirectory(file.parent) for file in root.glob("*/run.json"))


def unreadable_runs(root: Path) -> list[Path]:
    """Return the run.json files in a folder that cannot be read as a run's identity."""
    found = []
    for file in sorted(root.glob("*/run.json")):
        try:
            RunDirectory(file.parent).identity()
        except NoSuchRun:
            found.append(file)
    return found


def run_of_job(root: Path, wanted: Callable[[str], bool]) -> RunDirectory | None:
    """Return the newest run in a folder that a job of a cluster has created, or None.

    Runs that cannot be read are passed over; `list_runs` says why.

    Args:
        root: the folder with the runs.
        wanted: returns whether a job's name is that of the wanted job.
    """
    found: list[tuple[float, RunDirectory]] = []
    for file in root.glob("*/run.json"):
        run = RunDirectory(file.parent)
        with suppress(NoSuchRun):
            identity = run.identity()
            if identity.job and wanted(identity.job):
                found.append((identity.created, run))
    return max(found, key=lambda one: one[0])[1] if found else None


def list_known_runs(root: Path) -> list[RunSummary]:
    """Return the registered runs of this user and those in `root`, newest first.

    Runs that cannot be read say why and are last.
    """
    below = (RunDirectory(file.parent) for file in root.glob("*/run.json"))
    every = {run.path.resolve(): run for run in (*known_runs(), *below)}
    return _summaries(every.values())


def _summaries(runs: Iterable[RunDirectory]) -> list[RunSummary]:
    summaries = []
    for run in runs:
        try:
            str(run.path).encode()
            summaries.append(summarize(run))
        except Exception as error:  # noqa: BLE001 -- whatever is in one folder hides no other run
            summaries.append(_unreadable(run, error))
    return sorted(summaries, key=lambda s: _finite(s.created), reverse=True)


def _unreadable(run: RunDirectory, error: Exception) -> RunSummary:
    why = "its name is not UTF-8" if isinstance(error, UnicodeEncodeError) else str(error)
    path = str(run.path).encode(errors="backslashreplace").decode()
    name = Path(path).name
    return RunSummary(
        id=name, name=name, path=path, created=0.0, state=RunState.LOST, unreadable=why
    )


def _finite(value: float) -> float:
    """Return a time as a sort key; a value that is not a time is sorted last."""
    return value if math.isfinite(value) else 0.0


def find_run(root: Path, wanted: str | None, *, live: bool = False) -> RunDirectory:
    """Find a run by name, unique prefix or folder; without a name, the newest (live) run.

    Args:
        root: the folder that holds the runs.
        wanted: a name, the beginning of one, or a run folder.
        live: without a name, choose only among runs that have not ended.

    Raises:
        NewerRun: a newer version wrote the run, in a format that this version does not know.
        NoSuchRun: no run or several runs match.
        ConfigError: the folder cannot be read.
    """
    if wanted and (Path(wanted) / "run.json").is_file():
        return _of_known_format(RunDirectory(Path(wanted).absolute()))
    require_runs_folder(root)
    if wanted and (root / wanted / "run.json").is_file():
        _of_known_format(RunDirectory(root / wanted))
    return choose_run(list_runs(root), wanted, str(root), live=live)


def _of_known_format(run: RunDirectory) -> RunDirectory:
    """Return the run, unless its format is newer than this version knows.

    Raises:
        NewerRun: a newer version wrote it.
    """
    try:
        run.identity()
    except NewerRun:
        raise
    except NoSuchRun:  # where the run is read, the error says what is wrong with it
        pass
    return run


def choose_run(
    runs: list[RunSummary],
    wanted: str | None,
    place: str,
    *,
    live: bool = False,
    listing: str = LISTING,
) -> RunDirectory:
    """Choose one of these runs, which are in the order newest first, by the rules of `find_run`.

    `listing` is the command that lists the runs, for the error.

    Raises:
        NoSuchRun: no run or several runs match; the text names `place`, where the runs are.
    """
    broken = [s for s in runs if s.unreadable]
    runs = [s for s in runs if not s.unreadable]
    if not wanted:
        return _newest(place, runs, live=live)
    if (named := [s for s in broken if s.id == wanted]) and wanted not in {s.id for s in runs}:
        raise NoSuchRun(f"{named[0].path} cannot be read: {named[0].unreadable}")
    exact = [s for s in runs if s.id == wanted]
    matching = exact or [s for s in runs if s.id.startswith(wanted)]
    if len(matching) == 1:
        return RunDirectory(Path(matching[0].path))
    if not matching:
        if ":" in wanted and listing == LISTING:
            raise NoSuchRun(_elsewhere(wanted))
        raise NoSuchRun(f"no run {wanted!r} in {place}; {_nearest(runs, wanted, listing)}")
    if exact:
        folders = ", ".join(s.path for s in matching[:5])
        raise NoSuchRun(f"{len(matching)} runs are called {wanted}; name the run folder: {folders}")
    names = ", ".join(s.id for s in matching[:5])
    raise NoSuchRun(f"{wanted!r} matches {len(matching)} runs: {names}; type more of the name")


def _elsewhere(wanted: str) -> str:
    """Return what to do with HOST:RUN for a command that reads the folder of a run itself."""
    host = wanted.rpartition(":")[0]
    return (
        f"{wanted} names a run on another machine, but this command reads run folders of this "
        f"machine; run the command there, through: ssh {host or 'HOST'} (attach, show, ls and ctl "
        "take HOST:RUN)"
    )


def _nearest(runs: list[RunSummary], wanted: str, listing: str = LISTING) -> str:
    """Return a hint for a mistyped name: similar names, or the newest runs."""
    # The digits of a date are alike in every run, so that only names are compared.
    name = _TIME.sub("", wanted)
    near = [s.id for s in runs if get_close_matches(name, [s.name, s.id[: len(name)]], 1)]
    if near:
        return f"did you mean {' or '.join(near[:3])}? List all runs with: {listing}"
    newest = ", ".join(s.id for s in runs[:5]) or "none"
    return f"the newest runs: {newest}; list all with: {listing}"


def _newest(place: str, runs: list[RunSummary], *, live: bool) -> RunDirectory:
    fitting = [s for s in runs if not (live and s.state.ended)]
    if not fitting:
        what = "live run" if live and runs else "run"
        raise NoSuchRun(f"no {what} in {place}; start one with: fttui run CONFIG")
    return RunDirectory(Path(fitting[0].path))


def summarize(run: RunDirectory) -> RunSummary:
    """Summarize a run from its engine mark and the beginning and end of its journal.

    Raises:
        NoSuchRun: the folder is not a run folder.
    """
    identity = run.identity()
    journal = summarize_records(read_ends(run.journal))
    newest = journal.newest
    engine = read_engine_status(run)
    state = journal.status.state(engine)
    never = engine.never_started and journal.status.reported is None
    return RunSummary(
        id=run.id,
        name=identity.name,
        path=str(run.path),
        created=identity.created,
        state=state,
        engine_host="" if state.ended else engine.host,
        step=newest.step if newest else 0,
        total_steps=journal.total_steps,
        timeline=journal.timeline,
        loss=journal.loss,
        last_time=newest.time if newest else None,
        error=f"start it with: {resume_command(run.id)}" if never else journal.status.error,
        never_started=never,
        usage=journal.used,
        price=journal.tally.price,
    )


def learning_rate(run: RunDirectory) -> LearningRate:
    """Return the learning rate in force, as far as the journal of a run holds it."""
    return known_ends(run).learning_rate


def known_ends(run: RunDirectory) -> JournalSummary:
    """Return the summary of the beginning and the end of the journal of a run."""
    return summarize_records(read_ends(run.journal))


def read_ends(path: Path) -> list[Record]:
    """Read the records in the first 64 KiB and the last 256 KiB of a journal, in order.

    Those that this version cannot read are left out; without a journal there are none.
    """
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return []
    reader = FrameReader(path)
    payloads = [payload for _, payload in reader.read(limit_bytes=64 * 1024)]
    if size > 64 * 1024:
        payloads += read_tail(path)[0]
    elif size > reader.offset > 0:
        payloads += [p for p in read_past_damage(path, reader.offset) if isinstance(p, bytes)]
    unique = {record.seq: record for record in map(decode_readable, payloads) if record is not None}
    return [unique[seq] for seq in sorted(unique)]


def read_tail(path: Path) -> tuple[list[bytes], int]:
    """Read the encoded records in the last 256 KiB of a journal and the offset after them.

    What lies before damage in that part is left out. Without records, the list is empty and the
    offset 0.
    """
    try:
        with os.fdopen(open_plain(path, os.O_RDONLY, shown=path), "rb") as file:
            start = max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES)
            file.seek(start)
            data = file.read()
    except FileNotFoundError:
        return [], 0
    frames = _chain(data, 0)
    # Damage in the middle ends a chain of frames; those after it are newer.
    while frames and frames[-1][0] < len(data) and (later := _chain(data, frames[-1][0] + 1)):
        frames = later
    return [payload for _, payload in frames], start + frames[-1][0] if frames else 0


def newest_seq(payloads: Sequence[bytes]) -> int:
    """Return the sequence number of the last of these frames that is a record; 0 if none is."""
    for payload in reversed(payloads):
        with suppress(DecodeError):
            return peek_seq(payload)
    return 0


def _chain(data: bytes, after: int) -> list[tuple[int, bytes]]:
    """Return the first consecutive whole frames from `after` on, as (end, payload).

    A single frame counts only at the end of the data. The search covers 64 KiB.
    """
    for at in range(after, min(len(data), after + 65536)):
        frames = list(valid_frames(data, at))
        if len(frames) > 1 or (frames and frames[-1][0] == len(data)):
            return frames
    return []
