"""The driver of the app's terminal, which ends the app when the terminal is gone.

A window that is closed, or a connection that breaks, takes the terminal away from a running app.
Textual writes to it in a thread that an error ends; the app would then wait for ever for space in
the queue of that thread, and obey no signal.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TextIO

from textual.app import App
from textual.drivers.linux_driver import LinuxDriver

GONE = 128 + signal.SIGHUP
"""Exit code of an app whose terminal is gone."""


class TerminalDriver(LinuxDriver):
    """Draws in a terminal; when the terminal is gone, the app exits as after a hangup signal."""

    def __init__(self, app: App[Any], **options: Any) -> None:
        super().__init__(app, **options)
        self._file: Any = TerminalOutput(self._file, self._exit)

    def run_input_thread(self) -> None:
        """Read keys until the app ends or the terminal is gone."""
        try:
            super().run_input_thread()
        except OSError:
            self._exit()

    def _exit(self) -> None:
        with suppress(RuntimeError):  # the app has ended already
            self._loop.call_soon_threadsafe(self._app.exit, GONE)


class TerminalOutput:
    """The output file of a terminal; once it is gone, what is written to it is dropped."""

    def __init__(self, file: TextIO, gone: Callable[[], None]) -> None:
        self._file = file
        self._gone = gone

    def write(self, text: str) -> None:
        """Write text; the first failure reports that the terminal is gone."""
        try:
            self._file.write(text)
        except OSError:
            self._discard_further_output()

    def flush(self) -> None:
        """Write what is buffered; the first failure reports that the terminal is gone."""
        try:
            self._file.flush()
        except OSError:
            self._discard_further_output()

    def fileno(self) -> int:
        """Return the number of the open file."""
        return self._file.fileno()

    def _discard_further_output(self) -> None:
        """Put the null device in place of the terminal, so that nothing printed later fails."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for file in (self._file, sys.__stdout__):
            if file is not None:
                os.dup2(nowhere, file.fileno())
        os.close(nowhere)
        self._gone()
