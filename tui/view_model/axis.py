"""The x axis of plots: convert steps to wall time, tokens or epochs, and back.

A place is a value on the axis in its unit: a step, Unix seconds, tokens or epochs. The live history
is all steps that the current weights descend from, without those that a rollback abandoned.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from .branches import TOKENS, Branch, live_ends
from .run_view import Mark
from .series import Floats, Series

Axis = Literal["step", "time", "tokens", "epoch"]
AXES: tuple[Axis, ...] = ("step", "time", "tokens", "epoch")
_RULERS = {"time": "time", "tokens": TOKENS, "epoch": "epoch"}


def ruler_of(branch: Branch, axis: Axis) -> Series | None:
    """Return the curve that maps a branch's steps to places on the axis.

    None if the axis shows steps, or if the branch has no such values yet.
    """
    return None if axis == "step" else branch.curves.get(_RULERS[axis])


def places(steps: Floats, ruler: Series | None) -> Floats:
    """Convert steps of a branch `[N]` to places on the axis `[N]`; unchanged if `ruler` is None.

    A step outside the curve `ruler` gets the place of the nearest end of that curve.
    """
    return steps if ruler is None else np.interp(steps, ruler.xs, ruler.ys)


def steps_at(units: Floats, ruler: Series | None) -> Floats:
    """Convert places on the axis `[N]` to steps of a branch `[N]`; unchanged if `ruler` is None.

    A place outside the curve `ruler` gives the step of the nearest end of that curve.
    """
    return units if ruler is None else np.interp(units, ruler.ys, ruler.xs)


def place_of(branches: Sequence[Branch], axis: Axis, step: float) -> float:
    """Return the place of a step of the live history; a future step is extrapolated.

    A future step is placed at the mean pace of the newest branch that has values for the axis.
    While no branch has any, the step itself is returned.
    """
    if axis == "step":
        return step
    ruler: Series | None = None
    for index in sorted(live_ends(branches), reverse=True):
        found = ruler_of(branches[index], axis)
        if found:
            ruler = found
        if found and (found.first_x or 0.0) <= step:
            break
    if ruler is None or ruler.last is None:
        return step
    newest, value = ruler.last
    if step <= newest:
        return float(np.interp(step, ruler.xs, ruler.ys))
    first = ruler.first_x or 0.0
    pace = (value - float(ruler.ys[0])) / (newest - first) if newest > first else 0.0
    return value + (step - newest) * pace


def step_of(branches: Sequence[Branch], axis: Axis, place: float) -> int:
    """Return the step of the live history at a place on the axis, at most its newest one.

    If the axis shows steps, it is the rounded place itself. Else it is 0 before the first step that
    has a value for the axis.
    """
    for index in sorted(live_ends(branches), reverse=True):
        ruler = ruler_of(branches[index], axis)
        if axis == "step" or (ruler and float(ruler.ys[0]) <= place):
            return round(float(steps_at(np.array([place]), ruler)[0]))
    return 0


def window_of(
    branches: Sequence[Branch], axis: Axis, steps: tuple[float, float]
) -> tuple[float, float]:
    """Return the first and the last place on the axis of a window of steps (first, last).

    The last one is the first plus 1 if it would not be larger than the first.
    """
    left, right = (place_of(branches, axis, step) for step in steps)
    return left, right if right > left else left + 1.0


def place_of_mark(branches: Sequence[Branch], axis: Axis, mark: Mark) -> float:
    """Return the place of an event on the axis."""
    return mark.time if axis == "time" else place_of(branches, axis, mark.step)
