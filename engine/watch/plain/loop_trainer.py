"""A training loop in plain PyTorch as a `ControlledTrainer`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...protocol.commands import Chat
from ...protocol.events import AnyEvent
from ...train.control.controlled_trainer import EvalResult
from ...train.position import Position
from ..foreign_state import group_lrs
from ..foreign_trainer import ForeignTrainer


class LoopMemory:
    """Implements `TrainerMemory` for a loop: only its number of steps is known."""

    def __init__(self, optimizer: Any, position: Position) -> None:
        self._optimizer = optimizer
        self._position = position

    def capture(self) -> None:
        """Return nothing: what the loop itself counts is not known."""

    def restore(self, kept: None, step: int) -> None:
        """Set the number of finished steps."""
        self.move_to(step)

    def why_lost(self, kept: None) -> str:
        """Return an empty string: nothing is kept."""
        return ""

    def move_to(self, step: int) -> None:
        """Set the number of finished steps and the learning rate that the optimizer has now."""
        self._position.move_to(step, max(group_lrs(self._optimizer), default=0.0))


class LoopTrainer(ForeignTrainer):
    """Implements `ControlledTrainer` for the objects of a plain loop."""

    can_evaluate = False

    def evaluate(self, interrupted: Callable[[], bool]) -> EvalResult:
        """Raise NotImplementedError; it is not called, because the command is refused before."""
        raise NotImplementedError

    def sample(self, prompt: str) -> str:
        """Raise NotImplementedError; it is not called, because the command is refused before."""
        raise NotImplementedError

    def chat(
        self, chat: Chat, record: Callable[[AnyEvent], None], interrupted: Callable[[], bool]
    ) -> str:
        """Raise NotImplementedError; it is not called, because the command is refused before."""
        raise NotImplementedError
