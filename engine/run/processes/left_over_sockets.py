"""Removal of the socket folders that hubs leave behind when they are killed."""

from __future__ import annotations

import re
import socket
import stat
import time
from contextlib import suppress
from pathlib import Path

SOCKETS = ("pub", "req")
_OLD_S = 60.0
"""Age from which a folder without a listener is removed; a younger one may be of a hub that is
starting."""
_NAME = re.compile(r"[0-9a-f]{12}")
_ANSWER_S = 0.2


def clear_left_over(parent: Path, now: float | None = None) -> int:
    """Remove the socket folders in which no hub listens any more; return their number.

    A folder younger than a minute stays, as does one that cannot be removed.

    Args:
        parent: the folder that holds a folder per run.
        now: Unix seconds; None for the present time.
    """
    now = time.time() if now is None else now
    with suppress(OSError):
        return sum(_cleared(folder, now) for folder in list(parent.iterdir()))
    return 0


def _cleared(folder: Path, now: float) -> bool:
    with suppress(OSError):
        found = folder.lstat()
        old = now - found.st_mtime > _OLD_S
        if not (_NAME.fullmatch(folder.name) and stat.S_ISDIR(found.st_mode) and old):
            return False
        if any(_listens(folder / name) for name in SOCKETS):
            return False
        for name in SOCKETS:
            if stat.S_ISSOCK(_mode(folder / name)):
                (folder / name).unlink()
        folder.rmdir()
        return True
    return False


def _mode(path: Path) -> int:
    try:
        return path.lstat().st_mode
    except FileNotFoundError:
        return 0


def _listens(path: Path) -> bool:
    """Whether a process listens at a socket; True if that cannot be found out."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(_ANSWER_S)
        try:
            peer.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError:
            return True
    return True
