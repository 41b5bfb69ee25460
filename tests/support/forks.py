"""Programs of fttui in forks of one process that has imported them: 0.02 s for a start, not 0.2.

A forked program is a process of its own that runs the same code under its own environment, folder
and streams, as `python -m MODULE` would. What a start imports is tested with real starts.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

PRELOAD = (
    "fttui.tui.cli.attach",
    "fttui.tui.cli.control",
    "fttui.tui.cli.ls",
    "fttui.tui.cli.main",
    "fttui.tui.cli.run",
    "fttui.tui.connection.hub_connection",
    "fttui.tui.connection.local",
    "fttui.engine.hub.launch",
    "fttui.engine.run.control_log",
)


class Forked:
    """A forked program; like `Popen` as far as tests need it."""

    def __init__(self, told: socket.socket) -> None:
        self._told = told
        self.pid = int(json.loads(told.recv(100)))
        self.returncode: int | None = None

    def wait(self, timeout_s: float | None = None) -> int:
        """Return the exit code, negative for a signal.

        Raises:
            subprocess.TimeoutExpired: The program goes on.
        """
        if self.returncode is None:
            if not select.select([self._told], [], [], timeout_s)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout_s or 0.0)
            self.returncode = int(json.loads(self._told.recv(100)))
            self._told.close()
        return self.returncode

    def poll(self) -> int | None:
        """Return the exit code; None while the program runs."""
        try:
            return self.wait(0.0)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """Kill the program, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


class ForkServer:
    """The process that forks; it ends with the tests."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.forks", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            cwd=Path(__file__).parents[2],
        )
        theirs.close()
        atexit.register(self._ours.close)

    def start(
        self,
        module: str,
        words: Sequence[str],
        *,
        stdout: int,
        stderr: int,
        environ: Mapping[str, str] | None = None,
        own_session: bool = False,
    ) -> Forked:
        """Start a module as a program, without input."""
        asked = {
            "module": module,
            "words": [*words],
            "environ": dict(os.environ if environ is None else environ),
            "folder": os.getcwd(),
            "own_session": own_session,
        }
        told, tells = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with open(os.devnull) as empty:
            files = [empty.fileno(), stdout, stderr, tells.fileno()]
            socket.send_fds(self._ours, [json.dumps(asked).encode()], files)
        tells.close()
        return Forked(told)


def run_forked(
    module: str, words: Sequence[str], *, environ: Mapping[str, str], timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """Run a module as a program to its end, as `subprocess.run` does.

    Raises:
        subprocess.TimeoutExpired: It was killed because it did not end.
    """
    with TemporaryFile() as out, TemporaryFile() as err:
        program = fork_server().start(
            module, words, stdout=out.fileno(), stderr=err.fileno(), environ=environ
        )
        try:
            code = program.wait(timeout_s)
        except subprocess.TimeoutExpired:
            program.kill()
            raise
        texts = [os.pread(file.fileno(), 2**30, 0).decode() for file in (out, err)]
    return subprocess.CompletedProcess([module, *words], code, *texts)


@cache
def fork_server() -> ForkServer:
    """Return the server of this process."""
    return ForkServer()


def serve(asking: socket.socket) -> None:
    """Fork what is asked for, and tell how it ended, until nobody can ask."""
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    tells: dict[int, socket.socket] = {}
    while True:
        ready = select.select([asking.fileno(), woken], [], [])[0]
        if woken in ready:
            os.read(woken, 1000)
            _tell_ends(tells)
        if asking.fileno() in ready:
            data, files, _, _ = socket.recv_fds(asking, 1_000_000, 4)
            if not data:
                return
            pid = os.fork()
            if not pid:
                asking.close()
                _become(json.loads(data), files)
            tells[pid] = socket.socket(fileno=files[3])
            tells[pid].send(str(pid).encode())
            for descriptor in files[:3]:
                os.close(descriptor)


def _tell_ends(tells: dict[int, socket.socket]) -> None:
    while tells:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with tells.pop(pid) as told:
            try:
                told.send(str(os.waitstatus_to_exitcode(status)).encode())
            except OSError:
                continue  # nobody waits for it


def _become(asked: dict[str, Any], files: list[int]) -> None:
    """Be the program that is asked for; never returns."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for target, source in enumerate(files[:3]):
        os.dup2(source, target)
    os.closerange(3, 256)
    if asked["own_session"]:
        os.setsid()
    os.environ.clear()
    os.environ.update(asked["environ"])
    time.tzset()
    os.chdir(asked["folder"])
    sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace")
    code = _run(asked["module"], asked["words"])
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except OSError:
        code = code or 120  # as Python ends where nobody reads what it prints
    os._exit(code)


def _run(module: str, words: list[str]) -> int:
    sys.argv = [module, *words]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        print(ended.code, file=sys.stderr)
        return 1
    except BaseException:  # noqa: BLE001 -- a program ends with the traceback of any error
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    for name in PRELOAD:
        importlib.import_module(name)
    with socket.socket(fileno=int(sys.argv[1])) as questions:
        serve(questions)
