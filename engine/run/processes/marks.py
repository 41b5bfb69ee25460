"""Files in a run folder that identify its engine process, its hub process and the hub's sockets.

A socket path must stay under 108 bytes, so the sockets are in a private runtime folder with a short
path; the endpoint file in the run folder names it.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
import time
from pathlib import Path
from typing import TypeVar

import msgspec

from ...errors import NoSuchRun, NotOwner
from ..files import is_alive, process_started
from ..folder.open_folder import OpenFolder, read_plain
from ..run_dir import SMALL_FILE_BYTES, RunDirectory
from ..run_status import EngineStatus
from .identity import Liveness, ProcessIdentity, identity_of

MAX_SOCKET_PATH_BYTES = 107
UNMARKED_S, UNMARKED_LONG_S = 60.0, 3600.0
"""Seconds after which a run without an engine's mark is not starting any more: since its engine was
spawned by a process that has ended, and since its creation by a process that is not known."""


class ProcessMark(msgspec.Struct, frozen=True, kw_only=True):
    """Identifies a process by its pid, and by data that no later process with this pid has."""

    pid: int
    started: float
    """Unix seconds; for versions without `identity`."""
    identity: ProcessIdentity | None = None
    """None in the marks of older versions."""
    place: str = ""
    """Device and inode of the run folder: a renamed folder keeps them, a copied one does not."""

    @property
    def alive(self) -> bool:
        """Whether the process runs on this machine."""
        return self.liveness() is Liveness.RUNNING

    @property
    def host(self) -> str:
        """The name of the machine on which the process was started; empty if it is not known."""
        return self.identity.host if self.identity else ""

    def liveness(self, lock: Path | None = None) -> Liveness:
        """Return whether the process still runs.

        Args:
            lock: A file that the process keeps locked while it runs.
        """
        if self.identity is not None:
            return self.identity.liveness(self.pid, lock)
        return Liveness.RUNNING if is_alive(self.pid, self.started) else Liveness.EXITED

    @classmethod
    def of(cls, pid: int) -> ProcessMark:
        """Return the mark of a process on this machine."""
        return cls(pid=pid, started=process_started(pid) or 0.0, identity=identity_of(pid))

    @classmethod
    def current(cls) -> ProcessMark:
        """Return the mark of this process."""
        return cls.of(os.getpid())


_Mark = TypeVar("_Mark", bound=ProcessMark)


class EngineMark(ProcessMark, frozen=True, kw_only=True):
    """The engine process of rank 0, and the launcher that started it under torchrun."""

    incarnation: int = 1
    after_seq: int | None = None
    """Number of the newest record before this engine; None in the marks of older versions."""
    launcher: ProcessMark | None = None
    """The torchrun process that started all ranks and takes the run's signals; None without one."""


class Endpoint(ProcessMark, frozen=True, kw_only=True):
    """The hub process and the folder of its sockets."""

    folder: str
    """The private runtime folder that holds the sockets."""

    @property
    def events(self) -> str:
        """The ZeroMQ address of the PUB socket."""
        return f"ipc://{self.folder}/pub"

    @property
    def requests(self) -> str:
        """The ZeroMQ address of the ROUTER socket."""
        return f"ipc://{self.folder}/req"


def runtime_folder(run: RunDirectory) -> Path:
    """Create and return a private folder with a short path for the sockets of a run.

    Raises:
        NotOwner: another user owns the folder, it is a link, or its path is too long.
        OSError: it cannot be created.
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
        raise NotOwner(
            f"{path} is not a folder of yours, expected a private one for the sockets of runs; "
            "remove it, or set XDG_RUNTIME_DIR to a folder of yours"
        )
    if stat.S_IMODE(info.st_mode) != 0o700:
        path.chmod(0o700)


def write_mark(path: Path, mark: ProcessMark) -> None:
    """Write an `EngineMark` or `Endpoint`, with the place of the run folder, to its file there.

    Raises:
        OSError: it cannot be written.
    """
    mark = msgspec.structs.replace(mark, place=_place(path))
    with OpenFolder(path.parent) as folder:
        folder.write(path.name, msgspec.json.encode(mark))


def _place(path: Path) -> str:
    folder = path.parent.stat()
    return f"{folder.st_dev}:{folder.st_ino}"


def read_engine(run: RunDirectory) -> EngineMark | None:
    """Read the mark of the engine that last trained a run, which may have ended.

    None if it is missing or unreadable, or if the folder is a copy of the one it was written in.
    """
    return _read(run.engine, EngineMark)


def read_engine_status(run: RunDirectory) -> EngineStatus:
    """Read the mark of the engine that last trained a run and check if its process is alive.

    Without a mark that can be read, the status is that of a run on which no engine has worked.
    """
    mark = read_engine(run)
    if mark is None:
        return EngineStatus(never_started=_never_started(run, time.time()))
    liveness = mark.liveness(run.journal_lock)
    elsewhere = liveness is Liveness.UNKNOWN_HOST
    return EngineStatus(
        mark.pid,
        mark.incarnation,
        mark.started,
        alive=liveness is not Liveness.EXITED,
        host=mark.host if elsewhere else "",
        after_seq=mark.after_seq,
    )


def _never_started(run: RunDirectory, now: float) -> bool:
    """Whether no engine will mark this run any more, because its creator has ended.

    An engine that was spawned marks the run soon after; its log is there from the beginning. Of a
    run of an older version the creator is not known, and one created lately may still start.
    """
    try:
        identity = run.identity()
        began = run.engine_log.stat().st_mtime if run.engine_log.exists() else 0.0
    except (NoSuchRun, OSError):
        return False
    if identity.creator is None:
        return now - identity.created > UNMARKED_LONG_S
    ended = identity.creator.liveness(identity.creator_pid) is Liveness.EXITED
    return ended and now - began > UNMARKED_S


def read_endpoint(run: RunDirectory) -> Endpoint | None:
    """Read the endpoint of the hub that last served a run, which may have ended.

    None if it is missing or unreadable, or was copied here with another run folder.
    """
    return _read(run.endpoint, Endpoint)


def _read(path: Path, kind: type[_Mark]) -> _Mark | None:
    try:
        mark = msgspec.json.decode(read_plain(path, SMALL_FILE_BYTES), type=kind)
        # Zero and negative numbers name groups of processes, to which a signal must never go.
        return mark if mark.pid > 0 and mark.place in ("", _place(path)) else None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
