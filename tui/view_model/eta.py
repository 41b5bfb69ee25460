"""How fast the steps come and how long the rest takes; time is passed in as record times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

WINDOW = 64


@dataclass(frozen=True)
class Pace:
    """The newest intervals between steps. Pauses and evaluations are outliers the median drops."""

    intervals_s: tuple[float, ...] = ()
    newest_s: float | None = None
    """Unix seconds of the newest step."""

    def extend(self, times: Sequence[float]) -> Pace:
        """The pace after more steps ended at these times."""
        if not times:
            return self
        recent = [*([] if self.newest_s is None else [self.newest_s]), *times][-WINDOW - 1 :]
        gaps = tuple(max(0.0, b - a) for a, b in pairwise(recent))
        return Pace((*self.intervals_s, *gaps)[-WINDOW:], times[-1])

    def restarted(self) -> Pace:
        """The same pace, with the next interval not counted: training did not run meanwhile."""
        return Pace(self.intervals_s, None)

    @property
    def step_s(self) -> float | None:
        """Median seconds per step."""
        return median(self.intervals_s) if self.intervals_s else None

    def remaining_s(self, steps_left: int) -> float | None:
        """Seconds until that many more steps are done."""
        return None if self.step_s is None else self.step_s * max(0, steps_left)
