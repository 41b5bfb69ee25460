"""The curve of a variant that trained in another engine, as a note carries it and as an event."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

MOST_STEPS = 500
"""Steps in one part of a curve, so that no command becomes large."""


class VariantStep(msgspec.Struct, frozen=True, kw_only=True, tag_field="k", tag="VariantStep"):
    """A variant of a race has trained a step in an engine beside the one of the run.

    The run itself has not trained it. The record has the step at which the race began, and a
    timeline that no other training belongs to.
    """

    variant: str
    """The variant in words, such as `lr 2e-4`."""
    at: int
    """Number of the step."""
    loss: float | None = None
    """The training loss; None if it was not finite, or if only an evaluation was made here."""
    metrics: dict[str, float] = {}
    """The metrics of the evaluation after this step; empty without one."""


class VariantCurve(msgspec.Struct, frozen=True, kw_only=True):
    """Steps that a variant has trained in an engine beside that of the run, or a part of them."""

    variant: str
    """The variant in words, such as `lr 2e-4`."""
    losses: dict[int, float] = {}
    """The finite training losses, by step."""
    evaluations: dict[int, dict[str, float]] = {}
    """The metrics of evaluations, by step."""

    def steps(self) -> Iterator[VariantStep]:
        """Yield an event for each step with a loss or an evaluation, in their order."""
        for step in sorted(self.losses.keys() | self.evaluations.keys()):
            yield VariantStep(
                variant=self.variant,
                at=step,
                loss=self.losses.get(step),
                metrics=self.evaluations.get(step, {}),
            )

    def parts(self) -> Iterator[VariantCurve]:
        """Yield the curve in parts of at most `MOST_STEPS` steps."""
        steps = sorted(self.losses.keys() | self.evaluations.keys())
        for start in range(0, len(steps), MOST_STEPS):
            part = steps[start : start + MOST_STEPS]
            yield VariantCurve(
                variant=self.variant,
                losses={one: self.losses[one] for one in part if one in self.losses},
                evaluations={one: self.evaluations[one] for one in part if one in self.evaluations},
            )
