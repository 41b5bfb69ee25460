"""The processes of a launcher on one node: the first starts the ranks, the others wait for it.

The first one listens at an abstract socket, whose name follows from the process of the launcher, so
that no file is left behind. It sends the others its exit code, with which they end, too.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from fttui.engine.errors import ConfigError, FttuiError, TrainingFailed

from .launcher_place import LauncherPlace

_GATHER_S = 120.0
"""Seconds within which all processes of a node have to start."""
_POLL_S = 0.1
_GREETING_S = 5.0
"""Longest wait for the number of a process that has connected, which sends it at once."""
_TELL_S = 5.0
"""Longest wait for a process that does not take the exit code."""
_LOST = 11
"""Exit code of a waiting process if the first one ended without sending its own."""
_INTERRUPTED = 130


def in_group(place: LauncherPlace, work: Callable[[], int], say: Callable[[str], None]) -> int:
    """Do the work in the first process of a node, and return its exit code in all of them.

    The others wait for its end.

    Args:
        place: the place of this process on its node.
        work: starts the ranks of this node, waits for them, and returns the exit code.
        say: prints what this process does.

    Raises:
        ConfigError: not all processes of the node came.
        TrainingFailed: the first process ended without an exit code, or did not come.
    """
    say(place.described)
    if place.note and place.local_rank == 0:
        say(place.note)
    if place.local_size == 1:
        return work()
    if place.local_rank > 0:
        say("the first process of this node starts all of its ranks; waiting for its end")
        return _wait(place)
    with _gathered(place) as tell:
        code = FttuiError.exit_code
        try:
            code = work()
        except FttuiError as error:
            code = error.exit_code
            raise
        except KeyboardInterrupt:
            code = _INTERRUPTED
            raise
        finally:
            tell(code)
    return code


def _name(place: LauncherPlace) -> str:
    return f"\0fttui-{os.getuid()}-{place.job}-{place.attempt}"


@contextmanager
def _gathered(place: LauncherPlace) -> Iterator[Callable[[int], None]]:
    """Wait for the other processes of this node; yield a function that sends them an exit code.

    Raises:
        ConfigError: some did not come, or another process has the place of this one.
    """
    with ExitStack() as open_ones:
        server = open_ones.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        try:
            server.bind(_name(place))
        except OSError as error:
            raise ConfigError(
                f"{place.described}: another process has this rank already ({error.strerror}); "
                "start one command with the launcher"
            ) from None
        server.listen(place.local_size)
        others: dict[int, socket.socket] = {}
        deadline = time.monotonic() + _GATHER_S
        while len(others) < place.local_size - 1:
            server.settimeout(max(_POLL_S, deadline - time.monotonic()))
            try:
                other = open_ones.enter_context(server.accept()[0])
            except TimeoutError:
                raise ConfigError(
                    f"{place.described}: only {len(others) + 1} of {place.local_size} processes "
                    f"started within {_GATHER_S:g} s; look at the launcher's output"
                ) from None
            if _of_this_user(other) and (number := _number_of(other)) is not None:
                others[number] = other
        yield lambda code: _tell(list(others.values()), code)


def _number_of(other: socket.socket) -> int | None:
    """Return the local rank that a process sends; None if it sends none, as no process of ours."""
    other.settimeout(_GREETING_S)
    try:
        sent = other.recv(4)
    except OSError:
        return None
    other.settimeout(_TELL_S)
    return int(struct.unpack("!I", sent)[0]) if len(sent) == 4 else None


def _of_this_user(other: socket.socket) -> bool:
    credentials = other.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return bool(struct.unpack("3i", credentials)[1] == os.getuid())


def _tell(others: list[socket.socket], code: int) -> None:
    for other in others:
        try:
            other.sendall(struct.pack("!I", code))
        except OSError:
            continue  # it has ended before


def _wait(place: LauncherPlace) -> int:
    """Wait until the first process of the node ends, whatever signals come, and return its code.

    Raises:
        TrainingFailed: It did not come, or ended without an exit code.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the first process obeys it for all
    with _connected(place) as first:
        first.sendall(struct.pack("!I", place.local_rank))
        told = first.recv(4)
    if len(told) == 4:
        return int(struct.unpack("!I", told)[0])
    error = TrainingFailed(f"{place.described}: the first process of this node ended suddenly")
    error.exit_code = _LOST
    raise error


def _connected(place: LauncherPlace) -> socket.socket:
    deadline = time.monotonic() + _GATHER_S
    while True:
        first = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            first.connect(_name(place))
        except OSError:
            first.close()
            if time.monotonic() > deadline:
                raise TrainingFailed(
                    f"{place.described}: the first process of this node did not start within "
                    f"{_GATHER_S:g} s; look at its output"
                ) from None
            time.sleep(_POLL_S)
        else:
            return first
