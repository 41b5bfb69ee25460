"""What a Hugging Face trainer keeps while it trains: counters, logged history, callbacks."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

from torch import Tensor

from ...train.position import Position
from ..foreign_state import group_lrs

_OF_TRAINER = (
    "_tr_loss",
    "_total_loss_scalar",
    "_globalstep_last_logged",
    "current_flos",
    "_metrics",
    "_stored_metrics",
    "_total_train_tokens",
)
"""Attributes in which transformers and TRL accumulate what they log."""
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

    def capture(self) -> MemoryCopy:
        """Return a copy of the trainer's counters and of the state of its callbacks."""
        trainer, state = self._trainer, self._trainer.state
        own = [(name, getattr(trainer, name, _ABSENT)) for name in _OF_TRAINER]
        return MemoryCopy(
            {name: _copied(value) for name, value in own if value is not _ABSENT},
            {name: getattr(state, name, None) for name in _OF_STATE},
            len(state.log_history),
            [copy.deepcopy(one.state()["attributes"]) for one in self._stateful()],
        )

    def restore(self, kept: MemoryCopy, step: int) -> None:
        """Put a copy back, cut the log history to its length then, and set the finished steps.

        Requests to stop the epoch or the training are withdrawn.
        """
        trainer = self._trainer
        for owner, values in ((trainer, kept.trainer), (trainer.state, kept.state)):
            for name, value in _copied(values).items():
                setattr(owner, name, value)
        del trainer.state.log_history[kept.logged :]
        for callback, attributes in zip(self._stateful(), kept.callbacks, strict=True):
            for name, value in copy.deepcopy(attributes).items():
                setattr(callback, name, value)
        trainer.control.should_epoch_stop = trainer.control.should_training_stop = False
        trainer.state.global_step = step
        self.stepped()

    def stepped(self) -> None:
        """Copy the step and the learning rate of the schedule to the shared position."""
        step = int(self._trainer.state.global_step)
        self._position.move_to(step, max(group_lrs(self._trainer.optimizer), default=0.0))

    def _stateful(self) -> list[Any]:
        return [one for one in self._trainer.callback_handler.callbacks if hasattr(one, "state")]


def _copied(value: Any) -> Any:
    """Return a copy of nested dicts, lists of numbers and tensors; much faster than `deepcopy`."""
    if value is None or isinstance(value, int | float):
        return value
    if isinstance(value, dict):
        copied = copy.copy(value)
        for key, item in value.items():
            copied[key] = _copied(item)
        return copied
    if isinstance(value, list):
        return list(value)
    return value.clone() if isinstance(value, Tensor) else value
