"""Parts of the processes `validate` and `summary`: messages on standard output, and no torch."""

from __future__ import annotations

import os
import sys
import time
from typing import TextIO

import msgspec

from ..config.schema import ModelConfig
from ..protocol.codec import without_surrogates
from ..protocol.data.messages import AnyDataMessage, ReadingProgress

_PROGRESS_EVERY_S = 0.1


class Channel:
    """Writes messages, and progress a few times a second."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._due = 0.0

    def send(self, message: AnyDataMessage) -> None:
        """Write a message as a line of JSON; lone surrogates are written as escapes."""
        try:
            encoded = msgspec.json.encode(message)
        except UnicodeEncodeError:
            encoded = msgspec.json.encode(without_surrogates(msgspec.to_builtins(message)))
        self._stream.write(encoded.decode() + "\n")
        self._stream.flush()

    def progress(self, label: str, done: float, total: float) -> None:
        """Write progress, unless the last one was written a moment ago."""
        now = time.monotonic()
        if now >= self._due:
            self._due = now + _PROGRESS_EVERY_S
            self.send(ReadingProgress(label=label, done=done, total=total))


def without_torch(model: ModelConfig) -> None:
    """Make this process work without torch, whose import takes seconds, and with fewer warnings.

    With `trust_remote_code` torch stays importable, because the model's own code may need it.
    """
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    if not model.trust_remote_code:
        sys.modules["torch"] = None  # type: ignore[assignment]  # makes an import of it fail
