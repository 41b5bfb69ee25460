"""Memory check: compares the memory of steps with the plan made before the run."""

from __future__ import annotations

from dataclasses import dataclass, field

TOLERANCE = 0.05
"""Relative error of the estimate; a step that takes more than this above the plan is reported."""
_GIB = 2**30


@dataclass
class MemoryPlanCheck:
    """Warns when a step takes clearly more memory than planned, and than it last warned about."""

    planned_bytes: int
    """Planned bytes of one rank, or those that a trial measured."""
    measure: str
    """The figure compared: `allocated`, or `reserved` if CUDA graphs keep their memory."""
    _said_bytes: int = field(default=0, init=False)

    def correct(self, measured_bytes: int, measure: str) -> None:
        """Replace the plan by what a trial of the largest step took.

        A plan for the same figure is replaced only by a higher value.

        Args:
            measured_bytes: Peak memory of the trial.
            measure: The figure that was measured; it replaces the planned one.
        """
        known = self.planned_bytes if measure == self.measure else 0
        self.planned_bytes, self.measure = max(known, measured_bytes), measure

    def over(self, used_bytes: int) -> str | None:
        """Return the warning about a step's peak, and remember the peak.

        None if the peak is at most `TOLERANCE` above the plan, or above the last one warned about.

        Args:
            used_bytes: peak memory of the rank that used most.
        """
        known = max(self.planned_bytes, self._said_bytes)
        if used_bytes <= known * (1 + TOLERANCE):
            return None
        self._said_bytes = used_bytes
        share = used_bytes / self.planned_bytes - 1
        return (
            f"memory: a step took {used_bytes / _GIB:.2f} GiB {self.measure}, {share:.0%} more "
            f"than the {self.planned_bytes / _GIB:.2f} GiB planned or measured before training. "
            "If little memory is left, set train.activation_checkpointing: true, or lower "
            "train.batch or data.max_length; the run continues"
        )
