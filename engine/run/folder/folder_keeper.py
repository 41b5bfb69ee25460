"""Keeps the folder of a live run complete: files removed while the engine works are restored.

A removed file lives on as long as a process holds it open. So the engine holds the small files that
make a folder a run, looks once a second whether each still has its name, and writes a missing one
again from its open descriptor. Journal and control journal are kept in place by their writers.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import psutil

from ...protocol.codec import UNDECODABLE
from ..control_log import HeldFile
from ..processes.marks import EngineMark, write_mark
from ..run_dir import SMALL_FILE_BYTES, RunDirectory
from .open_folder import OpenFolder, blocks

_TEMPORARY = re.compile(r"\..+\.(\d+)\.tmp")


def sweep_temporary(run: RunDirectory) -> None:
    """Remove the temporary files of processes that were killed while they replaced a file."""
    for place in (run.path, run.reports, *_subfolders(run.checkpoints)):
        with suppress(OSError), OpenFolder(place) as folder:
            for name in os.listdir(folder.descriptor):
                found = _TEMPORARY.fullmatch(name)
                if found and not _writes_here(int(found[1])):
                    folder.remove(name)


def _subfolders(folder: Path) -> list[Path]:
    with suppress(OSError):
        return [path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()]
    return []


def _writes_here(pid: int) -> bool:
    """Whether another process runs under the pid in the name of a temporary file.

    A file with this process's own pid is from an earlier process: this one has not written yet.
    """
    with suppress(OverflowError):  # no process has such a number
        return pid != os.getpid() and psutil.pid_exists(pid)
    return False


@dataclass(frozen=True)
class FolderReport:
    """The result of one check of a run folder: the files restored, or its new place."""

    put_back: list[str] = field(default_factory=list)
    """The files and folders that were missing and are there again."""
    made_again: bool = False
    """Whether the folder itself or the one of the checkpoints was missing."""
    moved_to: str = ""
    """Where the folder is now if it was renamed; empty if it is in its place."""


class FolderKeeper:
    """Keeps the small files of a run open and restores those that are removed."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._folder = run.open()
        files = (run.identity_file, run.config, run.source_config, run.content_identities)
        others = (run.engine, run.data_sample, run.path / "desired.json")
        self._files = [file.name for file in (*files, *others)]
        self._held: dict[str, int] = {}
        self._control = HeldFile(run.control)
        self.restore_missing()

    def restore_missing(self) -> FolderReport:
        """Restore missing files and folders, open new ones, and report what was done.

        A folder that was moved is left alone, also if there is another one in its place now.

        Raises:
            OSError: something is missing and cannot be written.
        """
        missing = not self._folder_in_place()
        if missing and (place := place_of(self._folder)) is not None:
            return FolderReport(moved_to=place)
        if missing:
            self._run.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder = self._run.open()
            self._folder.close()
            self._folder = folder
        folders = (self._run.checkpoints, self._run.reports, self._run.logs)
        gone = [folder.name for folder in folders if not folder.exists()]
        for name in gone:
            self._folder.make_folder(name)
        files = [name for name in self._files if not self._is_in_place(name)]
        put_back = [name for name in files if self._put_back(name)]
        if self._control.replaced():  # its hub has written it again
            put_back.append(self._run.control.name)
        again = missing or self._run.checkpoints.name in gone
        return FolderReport([*(f"{name}/" for name in gone), *put_back], made_again=again)

    def _folder_in_place(self) -> bool:
        """Whether the path of the run leads to the folder that is held open."""
        try:
            found = os.stat(self._run.path)
        except FileNotFoundError:
            return False
        same = os.path.samestat(found, os.fstat(self._folder.descriptor))
        # Some file systems of other machines give a folder a new number at every look.
        return same or place_of(self._folder) == os.path.realpath(self._run.path)

    def _is_in_place(self, name: str) -> bool:
        """Whether something of this name exists; a plain file is held open from now on."""
        try:
            descriptor = self._folder.open_file(name, os.O_RDONLY)
        except FileNotFoundError:
            return False
        except OSError:
            return True  # something else took its place, which is not ours to remove
        if (before := self._held.pop(name, None)) is not None:
            os.close(before)
        self._held[name] = descriptor
        return True

    def _put_back(self, name: str) -> bool:
        held = self._held.get(name)
        if held is None:
            return False
        data = b"".join(blocks(held, 0, SMALL_FILE_BYTES))
        if name != self._run.engine.name:
            self._run.write(self._run.path / name, data)
            return True
        try:
            mark = msgspec.json.decode(data, type=EngineMark)
        except UNDECODABLE:
            return False  # it was overwritten before it was removed
        write_mark(self._run.engine, mark)
        return True

    def close(self) -> None:
        """Release the files."""
        for descriptor in self._held.values():
            os.close(descriptor)
        self._held.clear()
        self._control.close()
        self._folder.close()


def place_of(folder: OpenFolder) -> str | None:
    """Return where an open folder is now; None if it was removed."""
    found = os.fstat(folder.descriptor)
    if found.st_nlink == 0:
        return None
    try:
        place = os.readlink(f"/proc/self/fd/{folder.descriptor}")
    except OSError:
        return str(folder.path)
    return None if place.endswith(" (deleted)") and not Path(place).exists() else place
