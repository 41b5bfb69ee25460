"""The hub process: `python -m fttui.engine.hub RUN_DIR` serves one run to its viewers."""

from __future__ import annotations

import logging
import os
import resource
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType

from ..errors import FttuiError
from ..run.control_log import ControlWriter
from ..run.folder.links import require_plain
from ..run.journal import JournalLocked
from ..run.known_runs import remember_run
from ..run.processes.left_over_sockets import clear_left_over
from ..run.processes.marks import (
    Endpoint,
    ProcessMark,
    read_endpoint,
    read_engine,
    runtime_folder,
    write_mark,
)
from ..run.processes.ownership import require_own_process
from ..run.run_dir import RunDirectory
from ..run.run_index import known_ends
from .run_settings import idle_seconds
from .server import Hub
from .sockets import HubSockets

_ANNOUNCE_EVERY_S = 2.0
_WRITTEN_AGAIN_S = 3.0
"""Seconds in which another hub, if there is one, notices that its control journal was removed."""
_ADDRESS_SPACE_BYTES = 2 * 1024**3
"""Limit of the hub's address space, which protects the memory of the host: libzmq aborts a hub that
exceeds it, and the engine or a viewer starts the hub again."""
MAX_GROWTH_BYTES = 256 * 1024**2
"""Growth of resident memory at which the hub exits. A viewer can make libzmq buffer without limit
(an endless message, subscriptions); a new hub then takes over and viewers resume."""
MAX_DESCRIPTORS = 512
"""Open files at which the hub exits, about 250 viewers. A flood of connections would otherwise
continue until libzmq runs out of descriptors and aborts the process."""
_MEASURE_EVERY_S = 0.05
_log = logging.getLogger("hub")


class _TerminationSignal:
    """Notes that SIGTERM arrived; SIGHUP and SIGINT are ignored."""

    def __init__(self) -> None:
        self.asked = False
        signal.signal(signal.SIGTERM, self._ask)
        for ignored in (signal.SIGHUP, signal.SIGINT):
            signal.signal(ignored, signal.SIG_IGN)

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self.asked = True


def main(arguments: list[str]) -> int:
    """Serve a run until the hub is no longer needed; return the exit code.

    It is also 0 if another hub holds the lock of the run's control journal.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    if len(arguments) != 1:
        _log.error("usage: python -m fttui.engine.hub RUN_DIR")
        return 2
    os.umask(0o077)
    _bound_resources()
    terminated = _TerminationSignal()
    run = RunDirectory(Path(arguments[0]).absolute())
    try:
        require_plain(run.path)
        run.identity()
        if (engine := read_engine(run)) is not None and engine.alive:
            require_own_process(engine, "the engine")
        return _serve(run, terminated)
    except JournalLocked:
        _log.info("another hub serves %s", run.path)
        return 0
    except FttuiError as error:
        _log.error("%s", error)
        return error.exit_code
    except OSError as error:
        _log.error("%s cannot be served: %s", run.path, error)
        return FttuiError.exit_code


def _serve(run: RunDirectory, terminated: _TerminationSignal) -> int:
    _await_control_journal(run)
    control = ControlWriter(run)
    if (other := read_endpoint(run)) is not None and other.alive:
        _log.error(
            "hub %d still serves %s without the lock of its control journal; this one exits",
            other.pid,
            run.path,
        )
        return 1
    _forget_endpoint(run)
    sockets = HubSockets(folder := runtime_folder(run))
    try:
        hub = Hub(run, control, sockets, idle_seconds(run))
        me = ProcessMark.current()
        endpoint = Endpoint(
            pid=me.pid, started=me.started, identity=me.identity, folder=str(folder)
        )
        write_mark(run.endpoint, endpoint)
        if not run.is_side_run:
            remember_run(run)
        clear_left_over(folder.parent)
        _log.info("serving %s from %s", run.path, folder)
        announced = time.monotonic()
        growth = _ResourceGrowth()
        while not (terminated.asked or hub.done() or growth.too_much()):
            hub.turn()
            if time.monotonic() - announced > _ANNOUNCE_EVERY_S:
                announced = time.monotonic()
                _announce_again(run, endpoint)
        _log.info(
            "the hub ends; it refused %d requests, and %d replies could not be sent",
            hub.counters.refused,
            sockets.unsent,
        )
    finally:
        with suppress(OSError):
            _forget_endpoint(run)
        sockets.close()
        control.close()
    return 0


def _await_control_journal(run: RunDirectory) -> None:
    """Let another hub write the control journal again, if the folder of a live run was removed.

    A viewer that finds no hub in the new folder starts one. If this one took the lock before the
    other has noticed the removal, the decisions that only the other one holds would be lost.
    """
    engine = read_engine(run)
    if run.control.exists() or engine is None or not engine.alive or not known_ends(run).answered:
        return
    deadline = time.monotonic() + _WRITTEN_AGAIN_S
    while not run.control.exists() and time.monotonic() < deadline:
        time.sleep(0.05)


def _forget_endpoint(run: RunDirectory) -> None:
    with run.open() as folder:
        folder.remove(run.endpoint.name)


class _ResourceGrowth:
    """Measures the memory that the hub has gained since its start, and the files it has open."""

    def __init__(self) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._max_descriptors = min(MAX_DESCRIPTORS, soft * 3 // 4)
        self._page_bytes = resource.getpagesize()
        self._before_bytes = self._resident_bytes()
        self._measured = time.monotonic()

    def _resident_bytes(self) -> int:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[1]) * self._page_bytes

    def too_much(self) -> bool:
        """Whether memory or open files exceed a limit, so that the hub must exit.

        They are measured at most 20 times a second; a call in between returns False.
        """
        if time.monotonic() - self._measured < _MEASURE_EVERY_S:
            return False
        self._measured = time.monotonic()
        grown = self._resident_bytes() - self._before_bytes
        opened = len(os.listdir("/proc/self/fd"))
        if grown > MAX_GROWTH_BYTES:
            _log.error(
                "the hub's memory grew by %d MiB, probably through a faulty viewer; the hub exits",
                grown >> 20,
            )
        if opened > self._max_descriptors:
            _log.error(
                "the hub has %d open files, probably through a faulty viewer; the hub exits",
                opened,
            )
        return grown > MAX_GROWTH_BYTES or opened > self._max_descriptors


def _announce_again(run: RunDirectory, endpoint: Endpoint) -> None:
    """Write the endpoint file again if it was removed while the run folder still exists."""
    if run.identity_file.exists() and not run.endpoint.exists():
        write_mark(run.endpoint, endpoint)


def _bound_resources() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    _, ceiling = resource.getrlimit(resource.RLIMIT_AS)
    if ceiling == resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE_BYTES, ceiling))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
