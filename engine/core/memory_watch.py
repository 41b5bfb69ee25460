"""Whether a run takes the memory it was planned to take."""

from __future__ import annotations

from dataclasses import dataclass, field

TOLERANCE = 0.05
"""The estimate's own error: what is above by more was not planned."""
_GIB = 2**30


@dataclass
class MemoryPlanCheck:
    """Compares what steps take with the plan, and says it once, and again when that grows."""

    planned_bytes: int
    """Of one rank."""
    measure: str
    """What is compared: `allocated` by tensors, or `reserved` where graphs keep their memory."""
    _said_bytes: int = field(default=0, init=False)

    def over(self, used_bytes: int) -> str | None:
        """What to say of a step's peak; None where it is as planned or said already.

        Args:
            used_bytes: of the rank that took most.
        """
        known = max(self.planned_bytes, self._said_bytes)
        if used_bytes <= known * (1 + TOLERANCE):
            return None
        self._said_bytes = used_bytes
        share = used_bytes / self.planned_bytes - 1
        return (
            f"memory: a step took {used_bytes / _GIB:.2f} GiB {self.measure}, {share:.0%} more "
            f"than the {self.planned_bytes / _GIB:.2f} GiB planned. If the GPU has little left, "
            "set train.activation_checkpointing: true, or lower train.batch or data.max_length; "
            "the run goes on"
        )
