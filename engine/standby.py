"""An engine that imports the training stack before it has a run: `python -m fttui.engine.standby`.

`fttui run` starts it while it checks the data. Its standard input is a socket. A message on it has
the arguments of the engine, and with it comes the log file; from then on this process is that
engine. If the other end is closed without a message, because the run is refused, it ends.
"""

from __future__ import annotations

import json
import logging
import os
import select
import socket
import sys
from contextlib import suppress

from .__main__ import leave, main
from .telemetry.logs import quieten_libraries
from .train.imports import import_training

_LONGEST_BYTES = 1 << 16


class _Held(logging.Handler):
    """Keeps the log records of the imports for the log of the run."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record."""
        self.records.append(record)


def stand_by(task: str) -> int:
    """Import what training a task needs until a run arrives, then train it; return the exit code.

    Without a run it returns 0.
    """
    held = _Held()
    root = logging.getLogger()
    root.addHandler(held)
    logging.captureWarnings(capture=True)
    quieten_libraries()
    with socket.socket(fileno=os.dup(0)) as asked:
        with suppress(Exception):  # the engine imports it again and records the error
            import_training(task, lambda: not select.select([asked], [], [], 0)[0])
        message, files, _, _ = socket.recv_fds(asked, _LONGEST_BYTES, 1)
    root.removeHandler(held)
    if not message:
        return 0
    _write_to(*files)
    return main(json.loads(message), held.records)


def _write_to(log: int) -> None:
    """Let the log follow what this process has printed so far, and take what it prints from now on.

    Standard output and standard error are one file until then. Nothing is read any more.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    with suppress(OSError):  # on a full disk the engine itself says so
        os.write(log, os.pread(2, os.fstat(2).st_size, 0))
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)


if __name__ == "__main__":
    leave(stand_by(sys.argv[1]))
