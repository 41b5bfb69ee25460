"""Step record: one optimizer step from its last backward pass to its journal event."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ...core.guard import GuardDecision, UpdateVerdict
from ...data.batches.batch_source import SeenExamples
from ...protocol.events import StepFinished
from ...protocol.usage.amounts import Usage
from ..distributed.agreement import PendingResult
from ..usage.meter import RankUse
from .memory_meter import MemoryReading
from .step_clock import StepClock
from .step_metrics import RankStep, StepMetrics, StepTotals
from .update_gate import Gradients

_LOSS_PARTS = frozenset({"ce", "contrastive", "preference", "balance"})


@dataclass
class StepRecord:
    """The data for the event of a step, and its gradients in case the update is held back."""

    number: int
    tally: StepMetrics
    clock: StepClock
    figures: PendingResult[RankStep]
    held: Tensor | None
    """1 if the device holds the update back and 0 if not, [] fp32; None if the host decides."""
    gradients: Gradients
    """Clipped gradients, for an update that is held back."""
    clip: float | None
    """Largest gradient norm; None if clipping is off."""
    lr_schedule: float
    lr_scale: float
    nonfinite: str
    """What the guard does with an update that is not finite: skip, halt or rollback."""
    memory: MemoryReading
    seen: SeenExamples
    epoch: float
    judged_at: float
    ended: bool = False
    """Whether the optimizer step is done and the counters have moved."""
    step_s: float | None = None
    """Duration by the clock of the device; None uses the clock of the host."""
    own: RankStep | None = None
    totals: PendingResult[StepTotals] | None = None
    decision: GuardDecision | None = None
    """The guard's decision on the update; None while only the device knows it."""
    loss_scale: float | None = None

    @property
    def verdict(self) -> UpdateVerdict | None:
        """The verdict on the update; None while only the device knows it."""
        return None if self.decision is None else self.decision.verdict

    @property
    def refused(self) -> str:
        """Why the guard refused the update; empty if it was applied or is not decided."""
        return "" if self.decision is None else self.decision.reason

    @property
    def lr(self) -> float:
        """The learning rate of the update."""
        return self.lr_schedule * self.lr_scale

    @property
    def known(self) -> RankStep:
        """The figures of this rank; the first read waits for the device."""
        if self.own is None:
            self.own = self.figures.read()
        return self.own

    @property
    def clipped(self) -> bool:
        """Whether the gradient norm was above the limit."""
        return self.clip is not None and self.known.grad_norm > self.clip

    @property
    def clip_factor(self) -> float:
        """The factor by which clipping has multiplied the gradients.

        It is 1 if they were not clipped or their norm is not finite.
        """
        if self.clip is None or not self.clipped or not math.isfinite(self.known.grad_norm):
            return 1.0
        return self.clip / self.known.grad_norm

    def judged(
        self,
        decision: GuardDecision,
        totals: PendingResult[StepTotals],
        loss_scale: float | None,
    ) -> None:
        """Add the decision, the totals over ranks, and the loss scale of fp16 training."""
        self.decision, self.totals, self.loss_scale = decision, totals, loss_scale

    def timed(self, step_s: float) -> None:
        """Add the duration of the step by the clock of the device."""
        self.step_s = step_s

    def end(self) -> None:
        """Mark the end of the optimizer step."""
        self.clock.end()
        self.tally.add_optimizer_time(time.perf_counter() - self.judged_at)
        self.ended = True

    def held_bytes(self, *, reserves: bool) -> int | None:
        """Return this rank's reserved, or peak allocated, memory in bytes; None without a GPU."""
        return self.memory.mem_reserved_bytes if reserves else self.memory.mem_allocated_bytes

    def event(self, used: Callable[[Sequence[RankUse]], Usage]) -> StepFinished:
        """Return the event of the step; waits for the figures of the other ranks.

        `used` returns what the run has used so far, of what the processes of its ranks have used.
        """
        assert self.totals is not None, "the verdict comes first"
        totals, tally = self.totals.read(), self.tally
        step_s = time.perf_counter() - tally.started if self.step_s is None else self.step_s
        return StepFinished(
            loss=totals.loss,
            parts={k: v for k, v in totals.parts.items() if k in _LOSS_PARTS},
            grad_norm=self.known.grad_norm,
            clip=self.clip,
            clipped=self.clipped,
            skipped=self.verdict is not UpdateVerdict.APPLY,
            without_targets=tally.without_targets,
            lr=self.lr,
            lr_schedule=self.lr_schedule,
            lr_scale=self.lr_scale,
            epoch=self.epoch,
            tokens=totals.tokens,
            samples=totals.samples,
            step_s=step_s,
            data_s=tally.data_s,
            compute_s=tally.compute_s,
            optimizer_s=tally.optimizer_s,
            tokens_per_s=totals.tokens / step_s,
            samples_per_s=totals.samples / step_s,
            skew_s=totals.skew_s,
            **self.memory._asdict(),
            **_by_rank(totals),
            extra=self._extra(totals),
            usage=used(totals.uses),
        )

    def _extra(self, totals: StepTotals) -> dict[str, float]:
        found = {k: v for k, v in totals.parts.items() if k not in _LOSS_PARTS}
        return found if self.loss_scale is None else {**found, "loss_scale": self.loss_scale}


def _by_rank(totals: StepTotals) -> dict[str, Any]:
    """Return the figures of every rank by their `StepFinished` fields; empty for a single rank."""
    if len(totals.rank_s) < 2:
        return {}
    return {name: value for name, value in totals._asdict().items() if name.startswith("rank_")}
