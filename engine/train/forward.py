"""The interface of a forward strategy: how a micro-batch passes through the model.

`trainers.eager` passes it through the model's own code; `cuda_graphs.strategy` replays CUDA graphs
over static buffers. Everything that depends on the choice is a method or a property here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol

from torch import Tensor

Want = Literal["hidden", "ce", "log_probs", "context_log_probs", "balance"]
"""Results of a forward pass: last hidden states [B, T, H], summed cross-entropy [],
log-probabilities of the labelled tokens [B] and of those in `context` [B], and the load balancing
loss of experts []."""

Way = Literal["trained", "still", "reference", "evaluated"]
"""`still` has the adapter but no dropout; `reference` has neither dropout nor adapter; `evaluated`
is `still` for evaluations, whose graphs are captured only once their form has often occurred."""

States = Callable[[dict[str, Any]], Tensor]
"""Returns the last hidden states [B, T, H] of a batch whose padding is at the right."""

TrainingStep = Callable[[Any, Any, Any], Tensor]
"""`Trainer.training_step`: (model, inputs, num_items_in_batch) to the detached loss."""


class Forward(Protocol):
    """A strategy for the forward and backward pass of micro-batches."""

    @property
    def fact(self) -> str:
        """One line that says whether CUDA graphs are used and, if not, why."""

    @property
    def uses_graphs(self) -> bool:
        """Whether gradients and activations live in static buffers that outlive the step."""

    def __call__(
        self, model: Any, inputs: dict[str, Any], *wants: Want, way: Way = "trained"
    ) -> dict[Want, Tensor]:
        """Run a micro-batch forward and return the wanted tensors by name.

        Args:
            model: the prepared model, wrapped in DDP if there is one.
            inputs: on the device.
            wants: what to return. `ce` may be missing beside `hidden` where computing it outside
                costs nothing more.
            way: anything but `trained` needs the context `without_gradients` around it, and
                `reference` also the context `reference`.
        """

    def without_gradients(self) -> AbstractContextManager[None]:
        """Return a context for passes without dropout and without gradients."""

    def reference(self) -> AbstractContextManager[None]:
        """Return a context for passes without the adapter."""

    def evaluating(self, model: Any) -> AbstractContextManager[States]:
        """Return a context for an evaluation, with the function that runs its batches.

        Args:
            model: the model in evaluation mode; gradients are off.
        """

    def training_step(self, trainer: Any, plain: TrainingStep) -> TrainingStep:
        """Return the function that runs a micro-batch forward and backward.

        Args:
            trainer: the Hugging Face trainer.
            plain: its own training step.
        """

    def prepare(self, accelerator: Any) -> None:
        """Prepare the strategy, on every rank, before the accelerator prepares the model."""

    def average_gradients(self) -> None:
        """Average the gradients over all ranks, unless DDP has done so."""

    def make_ahead(self, lengths: Sequence[int], may_go_on: Callable[[], bool]) -> tuple[int, int]:
        """Make the graphs of micro-batches of these lengths, if there are any graphs.

        Args:
            lengths: tokens per row, after a micro-batch of the run has passed.
            may_go_on: called before each part; False ends it.

        Returns:
            how many graphs were made, and how many are left.
        """

    def make_room(self, *, outside: bool = True) -> None:
        """Free memory before other passes than those of training.

        Args:
            outside: whether they run outside of this strategy, as generating does.
        """

    def release(self) -> None:
        """Free the memory of the strategy's buffers and graphs; they are made again when needed."""
