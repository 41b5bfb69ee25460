"""The runs this user has on this machine, wherever their folders are, and how to start fttui here.

A login over ssh knows neither the folder runs live in nor the environment fttui is installed in;
what is noted here when a run is served tells it both.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from .files import write_atomically
from .run_dir import RunDirectory


class KnownRun(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run is and which Python serves it."""

    path: str
    interpreter: str


def state_folder() -> Path:
    """`$XDG_STATE_HOME/fttui`, else `~/.local/state/fttui`."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "fttui"


def remember_run(run: RunDirectory) -> None:
    """Note a run and this interpreter; a home that cannot be written only costs the note."""
    path = str(run.path.resolve())
    note = KnownRun(path=path, interpreter=sys.executable)
    with suppress(OSError, RuntimeError):
        folder = state_folder() / "runs"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = f"{hashlib.sha256(path.encode()).hexdigest()[:16]}.json"
        write_atomically(folder / name, msgspec.json.encode(note))
        write_atomically(folder.parent / "python", f"{sys.executable}\n".encode())


def known_runs() -> Iterator[RunDirectory]:
    """Runs that were noted and still exist; notes of others are taken away."""
    with suppress(RuntimeError):  # a user without a home
        for file in (state_folder() / "runs").glob("*.json"):
            try:
                note = msgspec.json.decode(file.read_bytes(), type=KnownRun)
            except (OSError, msgspec.DecodeError, UnicodeDecodeError):
                continue
            run = RunDirectory(Path(note.path))
            if run.identity_file.exists():
                yield run
            elif not run.path.exists():
                file.unlink(missing_ok=True)
