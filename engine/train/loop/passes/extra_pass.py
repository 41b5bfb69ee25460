"""The interface of an additional pass over the micro-batches of a step, and its common parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from torch import Tensor


class ExtraPass(Protocol):
    """Runs between the backward passes of a step and the clipping of its gradient."""

    def begin(self, batches: list[Any], items: Any) -> None:
        """Keep what the pass needs of a step; called before its `prepare_step`.

        Args:
            batches: the micro-batches of the step.
            items: the number of labelled tokens of the step on all ranks; None without labels.
        """

    def run(self, model: Any) -> None:
        """Pass over the micro-batches again; all ranks call it. Nothing is done in a dropped step.

        Args:
            model: the prepared model, wrapped in DDP if there is one.
        """

    def held(self) -> list[Tensor]:
        """Return tensors as large as those that a pass holds, for a trial of the memory."""


class NoExtraPass:
    """Makes no pass."""

    def begin(self, batches: list[Any], items: Any) -> None:
        """Do nothing."""

    def run(self, model: Any) -> None:
        """Do nothing."""

    def held(self) -> list[Tensor]:
        """Return nothing."""
        return []


def moved_weights(optimizer: Any) -> list[Tensor]:
    """Return the weights of an optimizer that have a gradient."""
    groups = optimizer.param_groups
    return [weight for group in groups for weight in group["params"] if weight.grad is not None]


def syncing(
    trainer: Any, model: Any, batches: Sequence[Any]
) -> Iterator[tuple[Any, AbstractContextManager[Any]]]:
    """Yield each micro-batch with its context; DDP averages gradients after the last one only."""
    for number, batch in enumerate(batches, 1):
        last = number == len(batches)
        yield batch, nullcontext() if last else trainer.accelerator.no_sync(model=model)
