"""Refuse a run folder that contains links, pipes or devices before a process writes into it.

Libraries write weights, logs and traces by path, so a link in the folder would make them write
outside of it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from ...errors import FttuiError

_NOT_ENTERED = frozenset({"exports"})
"""Folders whose content fttui never writes again; they may hold whatever a user put there."""
_SHOWN = 3


class UnsafeRunFolder(FttuiError):
    """A run folder contains links, pipes or devices."""


def require_plain(folder: Path) -> None:
    """Check that a run folder contains only plain files and folders, except in `exports/`.

    Raises:
        UnsafeRunFolder: it contains links, pipes or devices; the text names up to three of them.
        OSError: it cannot be read.
    """
    found = list(_others(folder, 0))
    if not found:
        return
    names = ", ".join(found[:_SHOWN]) + (", …" if len(found) > _SHOWN else "")
    raise UnsafeRunFolder(
        f"{folder} holds {names}; expected only files and folders, because fttui would write to "
        "what they lead to; remove them, or put the files themselves in their place"
    )


def _others(folder: Path, depth: int) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            mode = entry.stat(follow_symlinks=False).st_mode
            if stat.S_ISDIR(mode):
                if depth or entry.name not in _NOT_ENTERED:
                    yield from _others(Path(entry.path), depth + 1)
            elif not stat.S_ISREG(mode):
                yield f"{_kind(mode)} {entry.path}"


def _kind(mode: int) -> str:
    return "the link" if stat.S_ISLNK(mode) else "the pipe, socket or device"
