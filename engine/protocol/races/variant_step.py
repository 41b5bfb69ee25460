"""The event about a step that a variant of a race has trained in an engine beside the run."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

MOST_STEPS = 500
"""Steps that one note carries, so that no command becomes large."""


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


def variant_steps(
    variant: str, losses: Mapping[int, float], evaluations: Mapping[int, dict[str, float]]
) -> tuple[VariantStep, ...]:
    """Return an event for each step with a loss or an evaluation, in their order.

    Args:
        variant: the variant in words.
        losses: its finite training losses, by step.
        evaluations: the metrics of its evaluations, by step.
    """
    return tuple(
        VariantStep(
            variant=variant, at=step, loss=losses.get(step), metrics=evaluations.get(step, {})
        )
        for step in sorted(losses.keys() | evaluations.keys())
    )
