"""Names for the parts of a step in a profile; they cost nothing while none is taken."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

PREFIX = "fttui."
_NOTHING: AbstractContextManager[None] = nullcontext()
_recording = False


def record_spans(*, on: bool) -> None:
    """Have `span` tell the profiler, or not."""
    global _recording
    _recording = on


def span(name: str) -> AbstractContextManager[object]:
    """A part of the step, such as `backward`."""
    if not _recording:
        return _NOTHING
    return torch.profiler.record_function(PREFIX + name)
