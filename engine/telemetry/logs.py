"""Logging setup: a log file for each rank, libraries made quiet, and a handler that calls back."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from pathlib import Path

_FORMAT = "%(asctime)s %(levelname)-7s rank {rank} %(name)s: %(message)s"
_QUIET = (
    "accelerate",
    "bitsandbytes",
    "datasets",
    "filelock",
    "fsspec",
    "httpx",
    "huggingface_hub",
    "matplotlib",
    "torch",
    "urllib3",
)
_UNUSED = ("bitsandbytes.backends.cpu",)
"""Loggers that warn on some CPUs of a missing kernel which fttui does not use."""
_LEVELS = (
    (logging.ERROR, "error"),
    (logging.WARNING, "warning"),
    (logging.INFO, "info"),
    (logging.NOTSET, "debug"),
)


def setup_rank_log(run_dir_logs: Path, rank: int) -> logging.Handler:
    """Append this process's log records and warnings to `rank-<rank>.log`.

    Libraries that log every request or file log only warnings and errors. The folder is created if
    it is missing. A second call for the same file changes nothing.

    Returns:
        The handler; remove it from the root logger to close the file.

    Raises:
        OSError: the folder or the file cannot be created or opened.
    """
    path = (run_dir_logs / f"rank-{rank}.log").absolute()
    root = logging.getLogger()
    for present in root.handlers:
        if isinstance(present, logging.FileHandler) and present.baseFilename == str(path):
            return present
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter(_FORMAT.format(rank=rank)))
    root.addHandler(handler)
    root.setLevel(min(root.level or logging.INFO, logging.INFO))
    logging.captureWarnings(capture=True)
    quieten_libraries()
    return handler


def log_file(path: Path) -> logging.Handler:
    """Return a handler that appends log records to a file, in the format of the rank logs.

    The file is opened with the first record. The handler is for a process of somebody else, whose
    own logging setup must stay as it is.
    """
    handler = logging.FileHandler(path, encoding="utf-8", delay=True)
    handler.setFormatter(logging.Formatter(_FORMAT.format(rank=0)))
    return handler


def quieten_libraries() -> None:
    """Raise the log level of libraries whose many messages would hide important ones."""
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    for name in _UNUSED:
        logging.getLogger(name).setLevel(logging.ERROR)


class CallbackHandler(logging.Handler):
    """Calls `emit_line(level, text)` for each record; level is debug, info, warning or error.

    The text is the message, and the type and message of an exception logged with it; the log file
    has the whole traceback. Records logged during the callback are dropped, so that a failing
    callback causes no endless loop.
    """

    def __init__(self, emit_line: Callable[[str, str], None], level: int = logging.INFO) -> None:
        super().__init__(level)
        self._emit_line = emit_line
        self._busy = False

    def emit(self, record: logging.LogRecord) -> None:
        """Pass one record to the callback, which runs under the handler's lock.

        An exception of the callback is not raised; `handleError` of `logging` prints it.
        """
        if self._busy:
            return
        self._busy = True
        try:
            self._emit_line(level_name(record.levelno), line_of(record))
        except Exception:  # noqa: BLE001  # logging never raises into the code that logs
            self.handleError(record)
        finally:
            self._busy = False


def level_name(levelno: int) -> str:
    """Return debug, info, warning or error for a numeric level."""
    return next(name for least, name in _LEVELS if levelno >= least)


def line_of(record: logging.LogRecord) -> str:
    """Return the message of a log record, and of an exception logged with it, as one line."""
    lines = record.getMessage().strip().splitlines()
    if record.name == "py.warnings":
        lines = lines[:1]  # the second line is source code
    if record.exc_info and record.exc_info[1] is not None:
        lines += traceback.format_exception_only(record.exc_info[1])[-1].strip().splitlines()[:1]
    return " · ".join(line.strip() for line in lines if line.strip())
