"""Which processes serve a run: the engine's and the hub's identity, and the hub's sockets.

A socket path must stay under 108 bytes, so sockets live in a short private runtime folder that
the endpoint file in the run directory names.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from pathlib import Path
from typing import TypeVar

import msgspec

from ..errors import NotOwner
from .files import is_alive, process_started, write_atomically
from .run_dir import RunDirectory
from .run_status import EngineStatus

MAX_SOCKET_PATH_BYTES = 107


class ProcessMark(msgspec.Struct, frozen=True, kw_only=True):
    """A process that cannot be confused with a later one of the same pid."""

    pid: int
    started: float
    """Unix seconds."""
    place: str = ""
    """The folder it was written in, which may be renamed; a copy of a run is another folder."""

    @property
    def alive(self) -> bool:
        """It still runs."""
        return is_alive(self.pid, self.started)

    @classmethod
    def current(cls) -> ProcessMark:
        """This process."""
        return cls(pid=os.getpid(), started=process_started(os.getpid()) or 0.0)


_Mark = TypeVar("_Mark", bound=ProcessMark)


class EngineMark(ProcessMark, frozen=True, kw_only=True):
    """The engine's rank 0 (and its launcher under torchrun)."""

    incarnation: int = 1
    launcher: ProcessMark | None = None
    """The process that owns all ranks; signals for the whole run go there."""


class Endpoint(ProcessMark, frozen=True, kw_only=True):
    """The hub: process and sockets."""

    folder: str
    """Private runtime folder."""

    @property
    def events(self) -> str:
        """ZeroMQ address of the PUB socket."""
        return f"ipc://{self.folder}/pub"

    @property
    def requests(self) -> str:
        """ZeroMQ address of the ROUTER socket."""
        return f"ipc://{self.folder}/req"


def runtime_folder(run: RunDirectory) -> Path:
    """A short private folder for this run's sockets, made if missing and checked for ownership.

    Raises:
        NotOwner: someone else owns it or it is a link.
    """
    base = os.environ.get("XDG_RUNTIME_DIR")
    parent = Path(base) / "fttui" if base and len(base) < 60 else _fallback_parent()
    digest = hashlib.sha256(str(run.path.resolve()).encode()).hexdigest()[:12]
    folder = parent / digest
    for path in (parent, folder):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        _require_private(path)
    if len(os.fsencode(folder / "pub")) > MAX_SOCKET_PATH_BYTES:
        raise NotOwner(f"{folder} is too long for a socket; set XDG_RUNTIME_DIR to a short folder")
    return folder


def _fallback_parent() -> Path:
    shared = Path("/tmp" if len(tempfile.gettempdir()) > 60 else tempfile.gettempdir())
    return shared / f"fttui-{os.getuid()}"


def _require_private(path: Path) -> None:
    info = path.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid():
        raise NotOwner(f"{path} is not a folder of yours; remove it or set XDG_RUNTIME_DIR")
    if stat.S_IMODE(info.st_mode) != 0o700:
        path.chmod(0o700)


def write_mark(path: Path, mark: ProcessMark) -> None:
    """Store an `EngineMark` or `Endpoint`."""
    mark = msgspec.structs.replace(mark, place=_place(path))
    write_atomically(path, msgspec.json.encode(mark))


def _place(path: Path) -> str:
    folder = path.parent.stat()
    return f"{folder.st_dev}:{folder.st_ino}"


def read_engine(run: RunDirectory) -> EngineMark | None:
    """The engine that last trained this run, alive or not."""
    return _read(run.engine, EngineMark)


def read_engine_status(run: RunDirectory) -> EngineStatus:
    """Read which engine last trained a run and look its process up."""
    mark = read_engine(run)
    if mark is None:
        return EngineStatus()
    return EngineStatus(mark.pid, mark.incarnation, mark.started, mark.alive)


def read_endpoint(run: RunDirectory) -> Endpoint | None:
    """The hub that last served this run, alive or not."""
    return _read(run.endpoint, Endpoint)


def _read(path: Path, kind: type[_Mark]) -> _Mark | None:
    try:
        mark = msgspec.json.decode(path.read_bytes(), type=kind)
        return mark if mark.place in ("", _place(path)) else None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
