"""The optimizer step of a run and the next learning rate of its schedule; set by the trainer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Position:
    """The number of finished optimizer steps, and the learning rate that the schedule sets next."""

    step: int = 0
    """Optimizer steps finished."""
    lr_schedule: float = 0.0
    """Learning rate of the schedule for the next update, before the LR scale is applied."""

    def move_to(self, step: int, lr_schedule: float) -> None:
        """Set the finished steps and the schedule's learning rate; only the trainer calls this.

        It does so after a step, a rollback and a resume.
        """
        self.step, self.lr_schedule = step, lr_schedule
