"""Curves of variants that trained on other devices, which the journal of the run does not have."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import msgspec

from ..branches import EVAL, SMOOTHINGS, Branch, smoothed
from ..series import Series, SmoothedSeries
from .race_state import RaceState

MOST_CURVES = 256
"""Number of curves that are kept for a run; the oldest ones are dropped."""


class SideCurve(msgspec.Struct, frozen=True, kw_only=True):
    """What a variant trained on another device."""

    label: str
    """The variant in words, such as `lr 2e-4`."""
    start: int
    """The step at which the race began."""
    losses: dict[int, float]
    """The finite training losses, by step."""
    evaluations: dict[int, dict[str, float]] = {}
    """The metrics of evaluations, by step."""


def curves_of(state: RaceState, kept: int | None) -> list[SideCurve]:
    """Return the curves of the variants of a race that the run does not continue with.

    Args:
        state: the race, after its last round.
        kept: the variant whose steps the run trains again; None for none.
    """
    return [
        SideCurve(
            label=state.plan[n].label,
            start=state.base_step,
            losses=one.losses,
            evaluations=one.evaluations,
        )
        for n, one in enumerate(state.variants)
        if n != kept and one.losses
    ]


def branch_of(
    curve: SideCurve, value_at: Callable[[str, float], float | None] = lambda name, step: None
) -> Branch:
    """Return a curve as a branch of a run that no weights descend from.

    Args:
        curve: the curve.
        value_at: returns the value of a curve of the run at a step, from which the smoothed losses
            begin; None if it has none.
    """
    steps = sorted(curve.losses)
    loss = Series().extend(steps, [curve.losses[step] for step in steps])
    found = {"loss": loss}
    for beta in SMOOTHINGS:
        name = smoothed(beta)
        seed = value_at(name, curve.start)
        known = seed is not None and math.isfinite(seed)
        average = SmoothedSeries(beta, seed or 0.0, 1.0) if known else SmoothedSeries(beta)
        found[name] = Series().extend(steps, average.run(loss.ys)[1])
    for step, metrics in sorted(curve.evaluations.items()):
        _add(found, step, metrics)
    return Branch(timeline=0, start=curve.start, curves=found)


def _add(found: dict[str, Series], step: int, metrics: Mapping[str, float]) -> None:
    for name, value in metrics.items():
        found[EVAL + name] = found.get(EVAL + name, Series()).append(step, value)
