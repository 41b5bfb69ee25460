"""Runs a process of the engine without a terminal and prints its output."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from fttui.engine.errors import FttuiError

from ..options import say


def relay_lines(command: Sequence[str]) -> int:
    """Run a command without a terminal, print its lines, and return its exit code.

    Ctrl+C asks it to end, which it does once what it has begun is done.

    Raises:
        FttuiError: the output of the command cannot be read.
    """
    with (
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process,
        _passed_on(process),
    ):
        if process.stdout is None:
            raise FttuiError("the output of the process cannot be read")
        for line in process.stdout:
            say(line.removesuffix("\n"))
    return process.returncode


def relay_with_errors(command: Sequence[str]) -> int:
    """Run a command, print its output and its errors, each as such, and return its exit code."""
    plain = os.environ | {"TQDM_DISABLE": "1"}  # it reports its progress itself
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=plain,
    ) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        errors = threading.Thread(target=sys.stderr.writelines, args=(process.stderr,))
        errors.start()
        for line in process.stdout:
            say(line.removesuffix("\n"))
        errors.join()
    return process.returncode


@contextmanager
def _passed_on(process: subprocess.Popen[str]) -> Iterator[None]:
    """Pass the stop signals of this process on to another one."""

    def ask(_number: int, _frame: FrameType | None) -> None:
        process.terminate()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
