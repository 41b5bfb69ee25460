"""The learning rate scale of a foreign optimizer, around each update."""

from __future__ import annotations

from typing import Any

from ..train.checkpoint.optimizer_state import bare
from ..train.position import Position
from .foreign_state import set_group_lr


class LrScale:
    """Scales the learning rates of an optimizer for one update and restores them."""

    def __init__(self, optimizer: Any, position: Position) -> None:
        self._optimizer = optimizer
        self._position = position
        self._scheduled: list[Any] = []
        """Learning rates of the schedule while scaled ones are in their place."""

    def set_lr(self, lr: float) -> None:
        """Multiply the rates of all parameter groups by `lr` / scheduled rate, for one update.

        Nothing changes while the scheduled rate is 0.
        """
        scheduled, groups = self._position.lr_schedule, bare(self._optimizer).param_groups
        if lr == scheduled or not scheduled:
            return
        self._scheduled = [group["lr"] for group in groups]
        for group in groups:
            if group["lr"] is not None:
                own = float(group["lr"])
                set_group_lr(group, lr if own == scheduled else own * (lr / scheduled))

    def restore_lr(self) -> None:
        """Set the scheduled learning rates again; call it before the schedule changes them."""
        groups = bare(self._optimizer).param_groups
        for group, lr in zip(groups, self._scheduled, strict=False):
            set_group_lr(group, lr)
        self._scheduled = []
