"""Named spans for the parts of a step in a profile; they cost nothing while no profile is taken."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

PREFIX = "fttui."
_NOTHING: AbstractContextManager[None] = nullcontext()
_recording = False


def record_spans(*, on: bool) -> None:
    """Turn the recording of spans on or off."""
    global _recording
    _recording = on


def span(name: str) -> AbstractContextManager[object]:
    """Return a context manager that records a part of the step while `record_spans` is on."""
    if not _recording:
        return _NOTHING
    return torch.profiler.record_function(PREFIX + name)
