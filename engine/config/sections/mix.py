"""The weights of the sources of a mix over the course of a run: the key `data.mix`."""

from __future__ import annotations

from .base import NonNegative, Section

MixWeights = dict[str, NonNegative]


class MixPhase(Section, frozen=True, kw_only=True):
    """A part of the run in which the sources have the same weights."""

    at: NonNegative = 0.0
    """Where it begins: below 1 the share of the steps of the run, from 1 on a step. The first one
    begins at 0. Skipped data count as trained."""
    weights: MixWeights
    """Weight of each source by its name, relative to the other weights; 0 leaves a source out."""


def step_of(at: float, steps: int) -> int:
    """Return the number of finished steps at which a phase begins in a run of `steps` steps."""
    return round(at * steps) if at < 1 else round(at)
