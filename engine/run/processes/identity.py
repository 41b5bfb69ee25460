"""Identify a process in a way that does not depend on the wall clock.

A pid is reused, and a start time in Unix seconds comes from a clock that may be set. So a process
is identified by what the kernel counts since boot: its start in clock ticks, together with the id
of the boot and the name of the machine. Each platform has a function of its own: engines run on
Linux, viewers also on macOS.
"""

from __future__ import annotations

import fcntl
import functools
import os
import socket
import struct
import subprocess
import sys
import time
from contextlib import suppress
from enum import Enum
from pathlib import Path

import msgspec

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_MACHINE_ID = Path("/etc/machine-id")
_START_FIELD, _STATE_FIELD = 22, 3
"""Fields of /proc/PID/stat, counted from 1."""
_ASK_S = 5.0
_LOCK = struct.Struct("@hhlli")
"""`struct flock` of Linux: type, whence, start, length, pid."""


class Liveness(Enum):
    """Whether a process still runs, as far as it can be determined on this machine."""

    RUNNING = "running"
    EXITED = "exited"
    UNKNOWN_HOST = "unknown-host"
    """The process is on another machine or in another container, so it cannot be seen here."""


class ProcessIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of a process: start time, boot and machine."""

    start: str
    """Its start: clock ticks since boot on Linux, the start time that `ps` prints on macOS."""
    boot: str
    """The boot id of the machine."""
    space: str
    """The namespace of its pid: a container has its own."""
    host: str
    """Name of the machine."""
    machine: str
    """Id of the machine; empty if it has none."""

    def liveness(self, pid: int, lock: Path | None = None) -> Liveness:
        """Return whether the identified process still runs under a pid.

        Args:
            pid: its process id.
            lock: a file that the process keeps locked while it runs; used if it runs in another
                container.
        """
        here = current_identity()
        if self.boot != here.boot:
            return Liveness.EXITED if self._same_machine(here) else Liveness.UNKNOWN_HOST
        if self.space == here.space:
            return Liveness.RUNNING if _start_of(pid) == self.start else Liveness.EXITED
        if lock is not None and (held := is_locked(lock)) is not None:
            return Liveness.RUNNING if held else Liveness.EXITED
        return Liveness.UNKNOWN_HOST

    def _same_machine(self, here: ProcessIdentity) -> bool:
        same_id = not (self.machine and here.machine) or self.machine == here.machine
        return self.host == here.host and same_id


def identity_of(pid: int) -> ProcessIdentity | None:
    """Return the identity of a process on this machine; None if it does not exist or has exited."""
    start = _start_of(pid)
    here = _machine()
    return None if start is None else msgspec.structs.replace(here, start=start)


def current_identity() -> ProcessIdentity:
    """Return the identity of this process."""
    return identity_of(os.getpid()) or _machine()


def boot_id() -> str:
    """Return the id of the current boot of this machine; empty if the system has none."""
    return _machine().boot


def boot_seconds() -> float:
    """Return the seconds since the machine was started.

    On Linux they include the time it was suspended; on macOS they do not.
    """
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


def is_locked(file: Path) -> bool | None:
    """Whether another process holds the lock of a file; None if this cannot be determined.

    The check takes no lock, so it disturbs no other process. A process must not check its own lock,
    because closing the file would release it.
    """
    if sys.platform != "linux":
        return None
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        asked = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        return bool(_LOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))[0] != fcntl.F_UNLCK)
    except OSError:
        return None
    finally:
        os.close(descriptor)


@functools.cache
def _machine() -> ProcessIdentity:
    boot, space = "", ""
    if sys.platform == "darwin":
        boot = _answer("sysctl", "-n", "kern.bootsessionuuid")
    with suppress(OSError):
        boot = _BOOT_ID.read_text().strip()
        space = os.readlink("/proc/self/ns/pid")
    machine = ""
    with suppress(OSError):
        machine = _MACHINE_ID.read_text().strip()
    return ProcessIdentity(
        start="", boot=boot, space=space, host=socket.gethostname(), machine=machine
    )


def _start_of(pid: int) -> str | None:
    """Return when a process started; None if it does not exist or has exited (a zombie process)."""
    return _start_on_macos(pid) if sys.platform == "darwin" else _start_on_linux(pid)


def _start_on_linux(pid: int) -> str | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The second field is the name in parentheses, which may hold spaces and parentheses.
    fields = stat[stat.rindex(b")") + 2 :].split()
    if fields[_STATE_FIELD - 3] in (b"Z", b"X"):
        return None
    return fields[_START_FIELD - 3].decode()


def _start_on_macos(pid: int) -> str | None:
    state, _, start = _answer("ps", "-o", "state=,lstart=", "-p", str(pid)).strip().partition(" ")
    return start.strip() if start and not state.startswith("Z") else None


def _answer(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_S, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
