"""`python -m fttui.engine.hub RUN_DIR`: serve one run to its viewers."""

from __future__ import annotations

import logging
import os
import resource
import signal
import sys
import time
from pathlib import Path
from types import FrameType

import yaml

from ..errors import FttuiError
from ..run.control_log import ControlWriter
from ..run.journal import JournalLocked
from ..run.known_runs import remember_run
from ..run.process_marks import (
    Endpoint,
    ProcessMark,
    read_endpoint,
    runtime_folder,
    write_mark,
)
from ..run.run_dir import RunDirectory
from .server import Hub
from .sockets import HubSockets

_DEFAULT_IDLE_S = 600.0
_ANNOUNCE_EVERY_S = 2.0
_ADDRESS_SPACE_BYTES = 2 * 1024**3
"""The last resort: beyond it libzmq ends the process, which is started again; the host lives."""
MAX_GROWTH_BYTES = 256 * 1024**2
"""A viewer can make libzmq buffer without end (an endless message, subscriptions). A hub that has
grown by so much leaves, a fresh one takes over, and viewers resume where they were."""
MAX_DESCRIPTORS = 512
"""Open files at which it leaves too, some 250 viewers: libzmq itself ends a process that runs out
of them, and not until then would a flood of connections stop."""
_MEASURE_EVERY_S = 0.05
_log = logging.getLogger("hub")


class _TerminationSignal:
    """Set by SIGTERM."""

    def __init__(self) -> None:
        self.asked = False
        signal.signal(signal.SIGTERM, self._ask)
        for ignored in (signal.SIGHUP, signal.SIGINT):
            signal.signal(ignored, signal.SIG_IGN)

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self.asked = True


def main(arguments: list[str]) -> int:
    """Serve until nobody needs the hub; 0 also when another hub serves the run already."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    if len(arguments) != 1:
        _log.error("usage: python -m fttui.engine.hub RUN_DIR")
        return 2
    os.umask(0o077)
    _bound_resources()
    terminated = _TerminationSignal()
    run = RunDirectory(Path(arguments[0]).absolute())
    try:
        run.identity()
        return _serve(run, terminated)
    except JournalLocked:
        _log.info("another hub serves %s", run.path)
        return 0
    except FttuiError as error:
        _log.error("%s", error)
        return error.exit_code


def _serve(run: RunDirectory, terminated: _TerminationSignal) -> int:
    control = ControlWriter(run)
    if (other := read_endpoint(run)) is not None and other.alive:
        _log.error("hub %d serves %s although the lock was free", other.pid, run.path)
        return 1
    run.endpoint.unlink(missing_ok=True)
    sockets = HubSockets(folder := runtime_folder(run))
    try:
        hub = Hub(run, control, sockets, idle_seconds(run))
        me = ProcessMark.current()
        endpoint = Endpoint(pid=me.pid, started=me.started, folder=str(folder))
        write_mark(run.endpoint, endpoint)
        remember_run(run)
        _log.info("serving %s from %s", run.path, folder)
        announced = time.monotonic()
        growth = _ResourceGrowth()
        while not (terminated.asked or hub.done() or growth.too_much()):
            hub.turn()
            if time.monotonic() - announced > _ANNOUNCE_EVERY_S:
                announced = time.monotonic()
                _announce_again(run, endpoint)
        _log.info("leaving; %d messages refused, %d unsent", hub.counters.refused, sockets.unsent)
    finally:
        run.endpoint.unlink(missing_ok=True)
        sockets.close()
        control.close()
    return 0


class _ResourceGrowth:
    """How much memory and how many descriptors viewers have cost this process."""

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
        """It is time to make room for a fresh hub; the engine or a viewer starts one."""
        if time.monotonic() - self._measured < _MEASURE_EVERY_S:
            return False
        self._measured = time.monotonic()
        grown = self._resident_bytes() - self._before_bytes
        opened = len(os.listdir("/proc/self/fd"))
        if grown > MAX_GROWTH_BYTES:
            _log.error("grown by %d MiB: a viewer misbehaves; starting anew", grown >> 20)
        if opened > self._max_descriptors:
            _log.error("%d descriptors: a viewer misbehaves; starting anew", opened)
        return grown > MAX_GROWTH_BYTES or opened > self._max_descriptors


def _announce_again(run: RunDirectory, endpoint: Endpoint) -> None:
    """Put back an endpoint file that somebody removed, unless the whole run is gone."""
    if run.identity_file.exists() and not run.endpoint.exists():
        write_mark(run.endpoint, endpoint)


def _bound_resources() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    _, ceiling = resource.getrlimit(resource.RLIMIT_AS)
    if ceiling == resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE_BYTES, ceiling))


def idle_seconds(run: RunDirectory) -> float:
    """`hub.idle_s` of the run's configuration, or its default when that cannot be read."""
    try:
        config = yaml.safe_load(run.config.read_text())
        return float(config["hub"]["idle_s"])
    except (OSError, yaml.YAMLError, KeyError, TypeError, ValueError):
        return _DEFAULT_IDLE_S


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
