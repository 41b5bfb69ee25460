"""The interfaces between a trainer and everything that controls and observes it.

A trainer calls the `StepHooks` in this order; `step_loop.StepLoop` implements them:

    begin_step → fetch
      → (may_continue → forward → may_backward → backward → record_loss) × accumulate
      → check_update → may_update → optimizer step → optimizer_stepped → end_step

Control, checkpoints and monitoring see the trainer only as a `ControlledTrainer`. The engine's own
implementation is `trainers.controlled`; a plain PyTorch loop in the tests is another one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ...data.batches.batch_source import Batch, SeenExamples
from ...data.batches.mixing import MixChanges
from ...protocol.commands import Chat, Command
from ...protocol.events import AnyEvent
from ...protocol.settings import RunSettings
from ..checkpoint.exact_state import ExactState
from ..position import Position

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class EvalResult:
    """The metrics of one evaluation, and how long it took."""

    metrics: dict[str, float]
    seconds: float


class EvaluationInterrupted(Exception):
    """The run is to stop, so the evaluation ended between two batches, on every rank alike."""


class MicroBatchSource(Protocol):
    """The micro-batches of one rank, by their position."""

    @property
    def position(self) -> int:
        """Micro-batches consumed since the start of the run."""

    @property
    def epoch(self) -> float:
        """Passes over the data so far, such as 1.25."""

    @property
    def mix_changes(self) -> MixChanges:
        """Changes of the weights of several sources so far."""

    @property
    def seen(self) -> SeenExamples:
        """The examples of the step being trained and of the step before it."""

    def fetch(self, micro_batches: int) -> list[Batch]:
        """Return the next micro-batches and move the position behind them."""

    def prepare(self, micro_batches: int) -> None:
        """Make the micro-batches that `fetch` will return next ahead of time."""

    def rewind_to(self, position: int) -> None:
        """Go back to the boundary of a step that was dropped."""

    def return_to(self, position: int, changes: MixChanges) -> None:
        """Go to the position of a checkpoint, with the changes of the mix up to it."""

    def skip(self, micro_batches: int) -> None:
        """Leave out the next micro-batches."""


class ControlledTrainer(Protocol):
    """The operations that control, checkpoints and monitoring need of a trainer."""

    @property
    def position(self) -> Position:
        """Finished optimizer steps and the learning rate of the schedule."""

    @property
    def refuses(self) -> Mapping[type[Command], str]:
        """The commands that this trainer cannot carry out, each with the reason."""

    @property
    def state(self) -> ExactState:
        """The exact training state."""

    @property
    def data(self) -> MicroBatchSource:
        """The micro-batches of this rank."""

    def prepare(self, settings: RunSettings) -> None:
        """Put the settings in force that a step is trained with from its first batch on."""

    def set_lr(self, lr: float) -> None:
        """Set the learning rate of the next update in every parameter group."""

    @property
    def can_evaluate(self) -> bool:
        """Whether there are held-out examples."""

    def evaluate(self, interrupted: Callable[[], bool]) -> EvalResult:
        """Evaluate on the held-out examples; every rank enters this together.

        Args:
            interrupted: asked between batches by all ranks together; True ends the evaluation.

        Raises:
            EvaluationInterrupted: the run is to stop; nothing was changed.
        """

    def sample(self, prompt: str) -> str:
        """Return the text that the model generates for a prompt."""

    def chat(
        self, chat: Chat, record: Callable[[AnyEvent], None], interrupted: Callable[[], bool]
    ) -> str:
        """Answer a prompt by the base and by the current weights; every rank enters this together.

        Args:
            chat: the prompt and how to answer it.
            record: called with the events of the chat, on rank 0.
            interrupted: asked by all ranks together; True ends the chat.

        Returns:
            How many tokens each answer has, in words.

        Raises:
            Impossible: the prompt cannot be answered; nothing was changed.
        """

    def release_memory(self) -> int:
        """Free the memory of this rank's device and return the number of bytes freed."""

    def reclaim_memory(self) -> None:
        """Take the memory of this rank's device back.

        Raises:
            Exception: another process holds it; the memory stays released.
        """


class StepHooks(Protocol):
    """The calls that a trainer makes during one optimizer step, in this order."""

    def begin_step(self) -> bool:
        """Handle everything due before a step; return False if the run ends here."""

    def fetch(self, micro_batches: int) -> list[Any]:
        """Return the micro-batches of the step."""

    def may_continue(self) -> bool:
        """Return whether the next micro-batch may run; False if the step is being dropped."""

    def may_backward(self) -> bool:
        """Return whether the next backward pass may run; False if the step is being dropped."""

    def record_loss(self, loss: Tensor) -> None:
        """Add the loss of a micro-batch, [], to the loss of the step."""

    def check_update(self, clip: Callable[[float], Tensor]) -> Tensor:
        """Clip the gradients, check the update, and return the gradient norm before clipping.

        Args:
            clip: clips the gradients to a largest norm and returns their norm before that, [].
        """

    def may_update(self) -> bool:
        """Return whether the optimizer may change the weights."""

    def gated(self) -> AbstractContextManager[None]:
        """Return a context in which the device skips the optimizer step if it must not be applied.

        The device compares loss and gradient norm with their limits, so the host need not wait.
        """

    def optimizer_stepped(self) -> None:
        """Take note that the optimizer has changed the weights."""

    def end_step(self, *, last: bool = False) -> bool:
        """End the step and return True, or undo it and return False if it was dropped."""
