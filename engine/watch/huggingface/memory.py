"""What a Hugging Face trainer keeps while it trains: counters, logged history, callbacks."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

from torch import Tensor

from ...train.position import Position
from ..foreign_state import group_lrs
from .own_attributes import AttributesCopy, OwnAttributes

_OF_TRAINER = ("_tr_loss", "_total_loss_scalar", "_globalstep_last_logged", "current_flos")
"""Attributes in which `transformers.Trainer` accumulates what it logs."""
_ABSENT = object()
_OF_STATE = (
    "epoch",
    "total_flos",
    "num_input_tokens_seen",
    "best_metric",
    "best_global_step",
    "best_model_checkpoint",
)
"""Fields of `TrainerState` that training moves."""


class MemoryCopy(NamedTuple):
    """A copy of what a trainer keeps."""

    trainer: dict[str, Any]
    own: AttributesCopy
    """What the class of the trainer keeps, such as completions that it has generated."""
    state: dict[str, Any]
    logged: int
    """Entries of the log history."""
    callbacks: list[dict[str, Any]]
    """Attributes of each callback that has a state, in their order."""


class HfMemory:
    """Implements `TrainerMemory` for a `transformers.Trainer`."""

    def __init__(self, trainer: Any, position: Position) -> None:
        self._trainer = trainer
        self._position = position
        self._own = OwnAttributes(trainer)

    def capture(self) -> MemoryCopy:
        """Return a copy of the trainer's counters and of the state of its callbacks."""
        trainer, state = self._trainer, self._trainer.state
        own = [(name, getattr(trainer, name, _ABSENT)) for name in _OF_TRAINER]
        return MemoryCopy(
            {name: _copied(value) for name, value in own if value is not _ABSENT},
            self._own.capture(),
            {name: getattr(state, name, None) for name in _OF_STATE},
            len(state.log_history),
            [copy.deepcopy(one.state()["attributes"]) for one in self._stateful()],
        )

    def restore(self, kept: MemoryCopy, step: int) -> None:
        """Restore a copy, cut the log history to its length then, and set the finished steps.

        Requests to stop the epoch or the training are withdrawn.
        """
        trainer = self._trainer
        self._own.restore(kept.own)
        for owner, values in ((trainer, kept.trainer), (trainer.state, kept.state)):
            for name, value in values.items():
                setattr(owner, name, _copied(value))
        del trainer.state.log_history[kept.logged :]
        for callback, attributes in zip(self._stateful(), kept.callbacks, strict=True):
            for name, value in copy.deepcopy(attributes).items():
                setattr(callback, name, value)
        trainer.control.should_epoch_stop = trainer.control.should_training_stop = False
        trainer.state.global_step = step
        self.stepped()

    def why_lost(self, kept: MemoryCopy) -> str:
        """Return why a copy cannot be restored exactly; empty if it can."""
        return self._own.why_lost(kept.own)

    def stepped(self) -> None:
        """Copy the step and the learning rate of the schedule to the shared position."""
        step = int(self._trainer.state.global_step)
        self._position.move_to(step, max(group_lrs(self._trainer.optimizer), default=0.0))

    def _stateful(self) -> list[Any]:
        return [one for one in self._trainer.callback_handler.callbacks if hasattr(one, "state")]


def _copied(value: Any) -> Any:
    """Return a copy of a tensor, and a number as it is."""
    return value.clone() if isinstance(value, Tensor) else value
