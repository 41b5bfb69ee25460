"""Finding runs: by name, unique prefix or folder, and what each is up to."""

from __future__ import annotations

import os
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

import msgspec

from ..errors import NoSuchRun
from ..protocol.codec import decode_readable
from ..protocol.events import Record
from ..protocol.states import RunState
from .journal import FrameReader, valid_frames
from .journal_summary import summarize_records
from .known_runs import known_runs
from .process_marks import read_engine_status
from .run_dir import RunDirectory, require_runs_folder

_TAIL_BYTES = 256 * 1024


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One line of `fttui ls`."""

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
    """Wall time of the newest record."""
    error: str = ""


def list_runs(root: Path) -> list[RunSummary]:
    """Every run below a folder, newest first."""
    return _summaries(RunDirectory(file.parent) for file in root.glob("*/run.json"))


def unreadable_runs(root: Path) -> list[Path]:
    """Folders that were runs but cannot say which: their run.json is damaged or not ours."""
    found = []
    for file in sorted(root.glob("*/run.json")):
        try:
            RunDirectory(file.parent).identity()
        except NoSuchRun:
            found.append(file)
    return found


def list_known_runs(root: Path) -> list[RunSummary]:
    """Every run of this user on this machine that is known of, and those below `root`."""
    below = (RunDirectory(file.parent) for file in root.glob("*/run.json"))
    every = {run.path.resolve(): run for run in (*known_runs(), *below)}
    return _summaries(every.values())


def _summaries(runs: Iterable[RunDirectory]) -> list[RunSummary]:
    summaries = []
    for run in runs:
        try:
            summaries.append(summarize(run))
        except (NoSuchRun, PermissionError):
            continue
    return sorted(summaries, key=lambda s: s.created, reverse=True)


def find_run(root: Path, wanted: str | None, *, live: bool = False) -> RunDirectory:
    """A run by name, unique prefix or folder; the newest one (live if asked) when nothing is named.

    Raises:
        NoSuchRun: none or several match.
        ConfigError: the folder cannot be looked into.
    """
    if wanted and (Path(wanted) / "run.json").is_file():
        return RunDirectory(Path(wanted).absolute())
    require_runs_folder(root)
    return choose_run(list_runs(root), wanted, str(root), live=live)


def choose_run(
    runs: list[RunSummary], wanted: str | None, place: str, *, live: bool = False
) -> RunDirectory:
    """One of these runs (newest first), by name, unique prefix or, unnamed, the newest.

    Raises:
        NoSuchRun: none or several match; `place` says where they were looked for.
    """
    if not wanted:
        return _newest(place, runs, live=live)
    exact = [s for s in runs if s.id == wanted]
    matching = exact or [s for s in runs if s.id.startswith(wanted)]
    if len(matching) == 1:
        return RunDirectory(Path(matching[0].path))
    if not matching:
        raise NoSuchRun(f"no run {wanted!r} in {place}; {_nearest(runs, wanted)}")
    if exact:
        folders = ", ".join(s.path for s in matching[:5])
        raise NoSuchRun(f"{len(matching)} runs are called {wanted}; give the folder: {folders}")
    names = ", ".join(s.id for s in matching[:5])
    raise NoSuchRun(f"{wanted!r} fits {len(matching)} runs: {names}; give more of the name")


def _nearest(runs: list[RunSummary], wanted: str) -> str:
    """What a mistyped name may have meant: whole, or as far as it was typed."""
    near = [s.id for s in runs if get_close_matches(wanted, [s.id, s.id[: len(wanted)], s.name], 1)]
    if near:
        return f"did you mean {' or '.join(near[:3])}? (all: fttui ls)"
    return f"the newest there: {', '.join(s.id for s in runs[:5]) or 'none'} (all: fttui ls)"


def _newest(place: str, runs: list[RunSummary], *, live: bool) -> RunDirectory:
    fitting = [s for s in runs if not (live and s.state.ended)]
    if not fitting:
        what = "live run" if live and runs else "run"
        raise NoSuchRun(f"no {what} in {place}; start one with: fttui run CONFIG")
    return RunDirectory(Path(fitting[0].path))


def summarize(run: RunDirectory) -> RunSummary:
    """What a run is up to, from its marks and the ends of its journal.

    Raises:
        NoSuchRun: the folder is not a run.
    """
    identity = run.identity()
    journal = summarize_records(read_ends(run.journal))
    newest = journal.newest
    return RunSummary(
        id=run.id,
        name=identity.name,
        path=str(run.path),
        created=identity.created,
        state=journal.status.state(read_engine_status(run)),
        step=newest.step if newest else 0,
        total_steps=journal.total_steps,
        timeline=journal.timeline,
        loss=journal.loss,
        last_time=newest.time if newest else None,
        error=journal.status.error,
    )


def read_ends(path: Path) -> list[Record]:
    """The first records of a journal and those in its last 256 KiB, cheap for any length."""
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return []
    head = FrameReader(path).read(limit_bytes=64 * 1024)
    payloads = [payload for _, payload in head]
    if size > 64 * 1024:
        payloads += read_tail(path)[0]
    unique = {record.seq: record for record in map(decode_readable, payloads) if record is not None}
    return [unique[seq] for seq in sorted(unique)]


def read_tail(path: Path) -> tuple[list[bytes], int]:
    """The records in the last 256 KiB of a journal, and the offset behind the last of them."""
    try:
        with open(path, "rb") as file:
            start = max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES)
            file.seek(start)
            data = file.read()
    except FileNotFoundError:
        return [], 0
    for at in range(min(len(data), 65536)):
        frames = list(valid_frames(data, at))
        if len(frames) > 1 or (frames and frames[-1][0] == len(data)):
            return [payload for _, payload in frames], start + frames[-1][0]
    return [], 0
