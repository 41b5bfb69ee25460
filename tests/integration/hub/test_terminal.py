"""An app whose terminal goes away: it ends by itself, and the run goes on."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from .conftest import StartRun

LIMIT_S = 30


class Terminal:
    """A terminal with a process in it."""

    def __init__(self, command: list[str], *, controls: bool) -> None:
        self._master, slave = pty.openpty()
        starts: Callable[[], object] | None = None
        if controls:
            import fcntl
            import termios

            def starts() -> None:
                fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=starts,
            env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"},
        )
        os.close(slave)
        self._seen = b""

    def read_until(self, text: bytes) -> None:
        """Read what is drawn until a text is there."""
        while text not in self._seen:
            self._seen += os.read(self._master, 65_536)

    def close(self) -> None:
        """Take the terminal away."""
        os.close(self._master)


@pytest.mark.parametrize("controls", [True, False], ids=["with a hangup", "without a hangup"])
def test_an_app_without_its_terminal_ends_and_the_run_goes_on(
    start_run: StartRun, controls: bool
) -> None:
    run, engine = start_run()
    command = [sys.executable, "-m", "fttui.tui", "attach", str(run.path)]
    terminal = Terminal(command, controls=controls)
    watchdog = threading.Timer(LIMIT_S, terminal.process.kill)
    watchdog.start()
    try:
        terminal.read_until(b"double")
        terminal.close()
        assert terminal.process.wait() == 128 + signal.SIGHUP
    finally:
        watchdog.cancel()
        terminal.process.kill()
    assert engine.poll() is None
