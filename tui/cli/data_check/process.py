"""Run the process that reads the data, show its progress on a terminal, and print its lines."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import TextIO

import msgspec

from fttui.engine.errors import ConfigError, DataError, FttuiError, ModelError
from fttui.engine.protocol.data.messages import (
    AnyDataMessage,
    DataLine,
    DataRefused,
    ReadingProgress,
)

from ...text.control_characters import escape_control_characters
from ..output import styled

_ERRORS: dict[int, type[FttuiError]] = {one.exit_code: one for one in (ConfigError, ModelError)}
"""Error classes by the exit code that the process reports; any other code means a `DataError`."""
_LONGEST_LABEL = 60
_FIRST_LABEL = "checking the data …"
_ERROR_CHARACTERS = 2_000
"""Characters of a crashed process's output that are shown."""


def data_messages(module: str, arguments: Sequence[str], given: str) -> Iterator[AnyDataMessage]:
    """Yield the messages of a module of `engine.data` that runs in a process of its own.

    Args:
        module: Name of the module.
        arguments: The command-line arguments of the process.
        given: The standard input of the process: a resolved configuration, or nothing.

    Raises:
        DataError: The process refused the data, or ended unexpectedly.
        FttuiError: The configuration names something that does not exist, such as a template.
    """
    command = [sys.executable, "-W", "ignore", "-m", f"fttui.engine.data.{module}", *arguments]
    decoder = msgspec.json.Decoder(AnyDataMessage)
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(given)
        process.stdin.close()
        for line in process.stdout:
            message = decoder.decode(line)
            if isinstance(message, DataRefused):
                raise _ERRORS.get(message.exit_code, DataError)(message.text)
            yield message
        if process.wait():
            errors.seek(0)
            raise DataError(
                f"the data check ended with exit code {process.returncode}; its last output:\n"
                f"{errors.read()[-_ERROR_CHARACTERS:].strip()}"
            )


class ProgressLine:
    """Shows progress on one line of a terminal; elsewhere it shows nothing."""

    def __init__(self, stream: TextIO, *, plain: bool = False) -> None:
        """Make a progress line on a stream.

        With `plain`, and in a terminal that cannot move its cursor (`TERM=dumb`), every quarter is
        a line of its own, which a screen reader reads once.
        """
        self._stream = styled(stream) if stream.isatty() else None
        self._plain = plain or os.environ.get("TERM") == "dumb"
        self._shown = False
        self._quarter: tuple[str, int] | None = None
        """Label and quarter of the newest plain line."""

    def show(self, progress: ReadingProgress) -> None:
        """Show progress in place of what was shown before."""
        if self._stream is None:
            return
        share = f" {progress.done / progress.total:.0%}" if progress.total else ""
        text = f"{escape_control_characters(progress.label)[:_LONGEST_LABEL]}{share}"
        if self._plain:
            done = progress.done / progress.total if progress.total else 0.0
            quarter = progress.label, int(4 * done)
            if quarter != self._quarter:
                self._quarter = quarter
                self._stream.write(f"{text}\n")
        else:
            self._stream.write(f"\r\x1b[K{text}")
            self._shown = True
        self._stream.flush()

    def clear(self) -> None:
        """Clear the progress line of the terminal."""
        if self._stream is not None and self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._shown = False


def print_lines(
    messages: Iterator[AnyDataMessage], say: Callable[[str], None], *, plain: bool = False
) -> Iterator[AnyDataMessage]:
    """Show progress on standard error, print lines of text with `say`, yield all other messages.

    The process needs some seconds before its first message, so the progress begins without it. With
    `plain`, the progress rewrites no line.
    """
    progress = ProgressLine(sys.stderr, plain=plain)
    progress.show(ReadingProgress(label=_FIRST_LABEL, done=0, total=0))
    try:
        for message in messages:
            if isinstance(message, ReadingProgress):
                progress.show(message)
                continue
            progress.clear()
            if isinstance(message, DataLine):
                say(message.text)
            else:
                yield message
    finally:
        progress.clear()
