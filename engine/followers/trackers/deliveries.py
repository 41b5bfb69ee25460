"""What trackers are given: points of curves, notes, samples; and the timelines they belong to."""

from __future__ import annotations

import msgspec


class PlaceInRun(msgspec.Struct, frozen=True, kw_only=True):
    """Where in a run something happened."""

    seq: int
    """Sequence number of its record."""
    time: float
    """Unix seconds."""
    step: int
    timeline: int


class Points(PlaceInRun, frozen=True, kw_only=True):
    """The values of several metrics at one step."""

    metrics: dict[str, float]
    """Values by the metrics' names in trackers, such as `train/loss`; NaN and infinity occur."""


class Note(PlaceInRun, frozen=True, kw_only=True):
    """An event in words: an intervention, an alarm, a checkpoint."""

    kind: str
    """command, anomaly, checkpoint, rollback, note, data, start or end."""
    text: str
    alarm: bool = False
    """Whether a person should look at it soon."""


class Sample(PlaceInRun, frozen=True, kw_only=True):
    """A text that was generated with the weights of the step."""

    prompt: str
    text: str


Delivery = Points | Note | Sample


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """A timeline of a run, which is one run in a tracker."""

    number: int
    """From 1; each rollback begins a new one."""
    parent: int | None = None
    """The timeline that it continues; None for the first one."""
    start_step: int = 0
    """The step of the parent at which it begins."""
    reason: str = ""
    """Why it was begun, such as `rolled back from step 64 to 46`."""


class RunFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about a run that a tracker gets once."""

    id: str
    """Name of the run folder; the tracker runs of all timelines are grouped under it."""
    key: str
    """Sixteen hexadecimal characters that no other run has, whatever it is named."""
    created: float
    """Unix seconds."""
    config: dict[str, object]
    """The resolved configuration, nested as in the file."""
