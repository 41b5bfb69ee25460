"""The interface of a replay: steps that are trained again and leave no trace in the run.

While a replay runs, the step loop asks it instead of the command scheduler for the next step, and
journals nothing and lets neither guard nor detector see the steps. They pass through the same code
as all others, so that they are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import msgspec

from ...errors import CheckpointError
from ...protocol.commands import AverageCheckpoints, Chat
from ..checkpoint.mean import CheckpointMean
from .command_scheduler import Impossible
from .controlled_trainer import ControlledTrainer
from .profiling import Profiler


class StepReplay(Protocol):
    """Repeats steps on request; `culprit_search` implements it."""

    @property
    def running(self) -> bool:
        """Whether steps are being repeated."""

    def begin(self, anomaly: str) -> tuple[str, str]:
        """Return to the checkpoint before an anomaly; return old and new value for the journal.

        Raises:
            Impossible: the steps cannot be repeated; nothing was changed.
        """

    def next_step(self) -> bool:
        """Prepare the next step; False after the last one, when the run's own state is back."""

    @property
    def clip(self) -> float | None:
        """Max gradient norm of the step that is repeated; None if there was no limit."""

    def judge(self, loss: float, grad_norm: float) -> None:
        """Pass the figures of the repeated step to the replay, which decides how to continue.

        Args:
            loss: this rank's share of the loss.
            grad_norm: gradient norm over all ranks, before clipping.
        """

    def may_update(self) -> bool:
        """Return whether the optimizer may change the weights in the step that is repeated."""

    def end_step(self) -> bool:
        """Return whether the step counts; it is undone before False is returned."""


class NoReplay:
    """Repeats no steps."""

    running = False
    clip = None

    def begin(self, anomaly: str) -> tuple[str, str]:
        """Refuse by raising `Impossible`."""
        raise Impossible("the steps of this run cannot be repeated")

    def next_step(self) -> bool:
        """Return False: there is no step to repeat."""
        return False

    def judge(self, loss: float, grad_norm: float) -> None:
        """Do nothing."""

    def may_update(self) -> bool:
        """Return True."""
        return True

    def end_step(self) -> bool:
        """Return True."""
        return True


class OnRequest(NamedTuple):
    """The parts that carry out commands of a person: profiler, replay, and mean of checkpoints."""

    profiler: Profiler
    replay: StepReplay
    mean: CheckpointMean | None
    """None for a trainer whose state cannot be held in memory."""


@contextmanager
def weights_of(
    chat: Chat, trainer: ControlledTrainer, mean: CheckpointMean | None, back: Callable[[], None]
) -> Iterator[Chat]:
    """Put the weights that answer a chat in place for the block; all ranks enter it together.

    The chat is returned with the name of its checkpoint in full.

    With those of a checkpoint the live state is held on the host meanwhile, and restored to the
    last bit; then `back` is called.

    Raises:
        Impossible: the checkpoint does not exist or cannot be used; nothing was changed.
    """
    if not chat.checkpoint:
        yield chat
        return
    reason = trainer.refuses.get(AverageCheckpoints)
    if mean is None or reason:
        cause = reason or "the state of this trainer cannot be held meanwhile"
        raise Impossible(f"no checkpoint of this run can answer a chat: {cause}")
    try:
        name = mean.one(chat.checkpoint)
        with mean.in_place([name]):
            yield msgspec.structs.replace(chat, checkpoint=name)
    except CheckpointError as error:
        raise Impossible(str(error)) from None
    finally:
        back()
