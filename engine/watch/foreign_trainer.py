"""The common part of every `ControlledTrainer` around a trainer that fttui did not build."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..protocol.commands import Command
from ..protocol.settings import RunSettings
from ..train.position import Position
from .batch_tape import BatchTape
from .foreign_state import ForeignState
from .lr_scale import LrScale


class ForeignTrainer:
    """The exact state, the batches and the learning rate of a script."""

    def __init__(
        self,
        optimizer: Any,
        position: Position,
        state: ForeignState,
        data: BatchTape,
        refuses: Mapping[type[Command], str],
    ) -> None:
        self._scale = LrScale(optimizer, position)
        self.position = position
        self.state = state
        self.data = data
        self.refuses = refuses

    def prepare(self, settings: RunSettings) -> None:
        """Do nothing: weight decay and dropout belong to the script."""

    def set_lr(self, lr: float) -> None:
        """Multiply the rates of all parameter groups by `lr` / scheduled rate, for one update.

        Nothing changes while the scheduled rate is 0.
        """
        self._scale.set_lr(lr)

    def restore_lr(self) -> None:
        """Set the scheduled learning rates again; call it before the schedule changes them."""
        self._scale.restore_lr()

    def release_memory(self) -> int:
        """Return 0 bytes and release nothing: the script may hold tensors that fttui cannot see."""
        return 0

    def reclaim_memory(self) -> None:
        """Do nothing, because `release_memory` releases nothing."""
