"""A register of this user's run folders on this machine and of the Python that has fttui.

A login over ssh knows neither the folders that hold runs nor the environment fttui is installed in.
The hub of each run registers both here.
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
    """The folder of a run and the Python interpreter of its hub."""

    path: str
    interpreter: str


def state_folder() -> Path:
    """Return `$XDG_STATE_HOME/fttui`, or `~/.local/state/fttui` if that variable is not set.

    Raises:
        RuntimeError: the variable is not set, and the user has no home folder.
    """
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "fttui"


def remember_run(run: RunDirectory) -> None:
    """Register a run and this interpreter; do nothing if the home folder cannot be written."""
    path = str(run.path.resolve())
    note = KnownRun(path=path, interpreter=sys.executable)
    with suppress(OSError, RuntimeError):
        folder = state_folder() / "runs"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = f"{hashlib.sha256(path.encode()).hexdigest()[:16]}.json"
        write_atomically(folder / name, msgspec.json.encode(note))
        write_atomically(folder.parent / "python", f"{sys.executable}\n".encode())


def known_runs() -> Iterator[RunDirectory]:
    """Yield the registered runs that still exist, and remove the entries of deleted ones."""
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
