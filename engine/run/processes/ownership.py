"""Whether the engine and the hub of a run belong to the user of this process.

A run folder may be readable or writable for others, and its files name a process and a folder with
sockets. So before anything is sent, the process and the sockets are checked, not the files.
"""

from __future__ import annotations

import os
import pwd
import socket
import stat
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from ...errors import NotOwner
from .marks import Endpoint, ProcessMark

_UCRED = struct.Struct("3i")
"""`struct ucred` of Linux: pid, uid, gid."""
_XUCRED = struct.Struct("IIh2x16I")
"""`struct xucred` of macOS: version, uid, number of groups, groups."""
_SOL_LOCAL, _LOCAL_PEERCRED, _XUCRED_VERSION = 0, 1, 0
"""Of `sys/un.h` and `sys/ucred.h` on macOS; Python has no names for them."""
_ANSWER_S = 1.0


def current_user() -> int:
    """Return the user id that this process acts as."""
    return os.geteuid()


def require_own_process(mark: ProcessMark, what: str) -> None:
    """Check that a live process of a run, such as `the engine`, belongs to this user.

    Raises:
        NotOwner: it belongs to another user.
    """
    with suppress(psutil.Error):
        uid = psutil.Process(mark.pid).uids().effective
        if uid != current_user():
            raise NotOwner(_refusal(f"{what} (process {mark.pid})", uid))


def require_own_hub(endpoint: Endpoint) -> None:
    """Check that the sockets of a hub belong to this user and that only this user can reach them.

    Raises:
        NotOwner: the folder or a socket in it belongs to another user or is not what it should be,
            or another user's process answers there.
        OSError: the folder or its sockets are gone.
    """
    folder = Path(endpoint.folder)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise NotOwner(
            f"{folder} is not a folder, expected the private folder of the hub's sockets"
        )
    _require_own(found.st_uid, f"{folder}, the folder of the hub's sockets,")
    if stat.S_IMODE(found.st_mode) & 0o077:
        mode = f"{stat.S_IMODE(found.st_mode):o}"
        raise NotOwner(
            f"{folder}, the folder of the hub's sockets, has mode {mode}, expected 700, because "
            f"other users could take the place of the hub; correct that with: chmod 700 {folder}"
        )
    for name in ("pub", "req"):
        entry = (folder / name).lstat()
        if not stat.S_ISSOCK(entry.st_mode):
            raise NotOwner(f"{folder / name} is not a socket, expected one of the hub")
        _require_own(entry.st_uid, f"{folder / name}, a socket of the hub,")
    if (uid := _listening_user(folder / "req")) is not None:
        _require_own(uid, f"the process behind {folder / 'req'}")


def _listening_user(path: Path) -> int | None:
    """Return the user id of the process that listens at a socket; None if that is not known."""
    user_of = _PEER_USER.get(sys.platform)
    if user_of is None:
        return None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(_ANSWER_S)
        try:
            peer.connect(str(path))
            return user_of(peer)
        except OSError:
            return None  # nobody listens, and only this user can put a socket there


def _peer_user_on_linux(peer: socket.socket) -> int:
    found = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    return int(_UCRED.unpack(found)[1])


def _peer_user_on_macos(peer: socket.socket) -> int | None:
    """Return the user that listens, as `getpeereid` does; None for a structure of another version.

    Source: unix(4) of macOS; for a socket that has connected, the kernel keeps the credentials of
    the process that called listen.
    """
    found = peer.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, _XUCRED.size)
    if len(found) != _XUCRED.size:
        return None
    version, uid, *_ = _XUCRED.unpack(found)
    return int(uid) if version == _XUCRED_VERSION else None


_PEER_USER: dict[str, Callable[[socket.socket], int | None]] = {
    "linux": _peer_user_on_linux,
    "darwin": _peer_user_on_macos,
}


def _require_own(uid: int, what: str) -> None:
    if uid != current_user():
        raise NotOwner(_refusal(what, uid))


def _refusal(what: str, uid: int) -> str:
    return (
        f"{what} belongs to {_name(uid)}, expected {_name(current_user())}; nothing was sent; run "
        f"the command as {_name(uid)}, or read the run from its files with: fttui show RUN"
    )


def _name(uid: int) -> str:
    with suppress(KeyError):
        return f"user {pwd.getpwuid(uid).pw_name}"
    return f"user {uid}"
