"""One optimizer step from boundary to boundary, as our side of it.

begin_step → fetch → (may_continue, forward, backward) × accumulate → judge → update → end_step
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..core.guard import Verdict
from ..core.memory_plan import PlanWatch
from ..protocol.events import StepFinished
from .agree import Agreement, Pending
from .chronicle import Chronicle
from .conductor import Conductor
from .device import Stopwatch
from .gradient_flow import GradientFlow
from .memory import MemoryReading
from .profiler import StepProfiler
from .source import Batch, BatchSource
from .spans import span
from .steps import DeviceReading, StepTally, StepTotals, settle, start_total
from .watch import Watch

_LOSS_PARTS = frozenset({"ce", "contrastive", "preference"})


class Stepper:
    """Measures, guards and journals steps; the conductor decides when they may run."""

    def __init__(
        self,
        *,
        source: BatchSource,
        conductor: Conductor,
        chronicle: Chronicle,
        watch: Watch,
        agreement: Agreement,
        memory: Callable[[], MemoryReading],
        stopwatch: Stopwatch,
    ) -> None:
        self.source = source
        self.tally = StepTally()
        self._conductor = conductor
        self._chronicle = chronicle
        self._watch = watch
        self._agreement = agreement
        self._memory = memory
        self._stopwatch = stopwatch
        self.begin: Callable[[], None] = lambda: None
        """Called once, when optimizer and schedule exist."""
        self.updated: Callable[[], None] = lambda: None
        """Called when an update has changed the weights."""
        self.profiler: StepProfiler | None = None
        self.flow: GradientFlow | None = None
        """Measures the flow of an update when the watch wants it."""
        self.plan: PlanWatch | None = None
        """Says when steps take more memory than planned."""
        self.loss_scale: Callable[[], float | None] = lambda: None
        """What fp16 training multiplies its losses with now."""
        self._lr: Callable[[], float] = lambda: 0.0
        self._set_lr: Callable[[float], None] = lambda lr: None
        self._verdict = Verdict.APPLY
        self._totals: Pending[StepTotals] | None = None
        self._norm = 0.0
        self._used_lr = (0.0, 1.0)
        self._micro_batch = self._micro_batches = 0
        self._judged_at = 0.0
        self._scale: float | None = None
        self._reading: MemoryReading | None = None
        self._held_bytes: int | None = None
        """Peak memory of the step before."""
        self._clip: float | None = None

    def drive(self, schedule_lr: Callable[[], float], set_lr: Callable[[float], None]) -> None:
        """Connect the schedule and the optimizer's learning rate."""
        self._lr, self._set_lr = schedule_lr, set_lr

    def begin_step(self) -> bool:
        """Everything due at this boundary; False when the run ends here."""
        if not self._conductor.at_boundary():
            return False
        if self.profiler:
            self.profiler.begin_step()
        self.tally = StepTally()
        self._stopwatch.start()
        self._totals = None
        self._micro_batch = 0
        self._verdict = Verdict.APPLY
        return True

    def fetch(self, micro_batches: int) -> list[Batch]:
        """The step's micro-batches, counted."""
        with self.tally.time("data"), span("data"):
            batches = self.source.fetch(micro_batches)
            self._micro_batches = micro_batches
            for batch in batches:
                self.tally.count(batch)
        return batches

    def may_continue(self) -> bool:
        """Before each micro-batch: False when the step is being dropped."""
        first, self._micro_batch = self._micro_batch == 0, self._micro_batch + 1
        return first or not self._conductor.interrupted()

    def backward_begins(self) -> None:
        """Before every backward pass; from the last one on, this rank waits for the others."""
        self._stopwatch.lap()

    def judge(self, clip: Callable[[float], Tensor]) -> Tensor:
        """Late settings, clipping, verdict; returns the gradient norm before clipping.

        The verdict needs no word from the other ranks: a loss that is not finite on one of them
        has made the gradients, and so their norm, not finite on all.
        """
        if self._conductor.dropped:
            return torch.zeros(())
        self._conductor.before_update()
        started = time.perf_counter()
        desired = self._conductor.desired
        self._clip = self._conductor.clip
        norm = clip(self._clip if self._clip is not None else math.inf)
        self._while_the_device_works()
        own = settle(self.tally, norm)
        self._norm, self._scale = own.grad_norm, self.loss_scale()
        if self.flow and (reason := self._watch.wants_gradients(own.loss, own.grad_norm)):
            self.flow.before(reason, scale=self._clip_factor(own.grad_norm))
        own_s = self._stopwatch.lapped_s()
        self._totals = start_total(own, self.tally, own_s, self._agreement, self._device_told())
        self._verdict = self._watch.judge(own.loss, self._norm, desired.nonfinite)
        self._used_lr = (self._lr(), desired.lr_scale)
        self._set_lr(self._used_lr[0] * self._used_lr[1])
        self._judged_at = started
        return norm

    def _device_told(self) -> DeviceReading:
        now = self._reading
        assert now is not None, "the reading is taken before the totals are begun"
        return DeviceReading(self._held_bytes, now.gpu_util, now.gpu_temp_c, now.gpu_power_w)

    def _while_the_device_works(self) -> None:
        """What can be done before the verdict need not keep the device waiting after it."""
        self._reading = self._memory()
        if self._stopwatch.device_goes_on:
            self.source.prepare(self._micro_batches)

    def may_update(self) -> bool:
        """The optimizer may change the weights."""
        return self._verdict is Verdict.APPLY and not self._conductor.dropped

    def end_step(self) -> bool:
        """Counters have moved: journal the step; False when it was dropped and taken back."""
        if self._conductor.after_step():
            self._profiled(counted=False)
            return False
        self.tally.optimizer_s = time.perf_counter() - self._judged_at
        event = self._event()
        self._chronicle.record(event)
        if self.flow and self.flow.measuring:
            self._chronicle.record(self.flow.after())
        self._watch.observe(event, self.source)
        self._compare(event)
        self._act()
        self._profiled(counted=True)
        return True

    def _compare(self, event: StepFinished) -> None:
        if self.plan is None:
            return
        own = event.mem_reserved_bytes if self._reserves else event.mem_allocated_bytes
        said = self.plan.over(max([own or 0, *event.rank_mem_bytes]))
        if said is not None:
            self._chronicle.log("warning", said)

    @property
    def _reserves(self) -> bool:
        """Graphs keep their memory, so what is allocated does not say what is taken."""
        return self.plan is not None and self.plan.measure == "reserved"

    def _profiled(self, *, counted: bool) -> None:
        if self.profiler:
            self.profiler.end_step(self.tally.tokens, counted=counted)

    def _clip_factor(self, norm: float) -> float:
        clipped = self._clip is not None and math.isfinite(norm) and norm > self._clip
        return self._clip / norm if clipped and self._clip is not None else 1.0

    def _act(self) -> None:
        way_back = self._watch.way_back() if self._verdict is Verdict.ROLLBACK else None
        if way_back is not None:
            self._conductor.demand(way_back)
        elif self._verdict in (Verdict.HALT, Verdict.ROLLBACK):
            self._conductor.halted = self._watch.reason
        if wanted := self._watch.wanted(self._conductor.desired.autopilot):
            command, reason = wanted
            self._conductor.demand(command, "autopilot", reason)

    def _event(self) -> StepFinished:
        assert self._totals is not None, "judge() comes before end_step()"
        totals, tally = self._totals.read(), self.tally
        step_s = time.perf_counter() - tally.started
        schedule, scale = self._used_lr
        memory = self._reading
        assert memory is not None, "judge() comes before end_step()"
        self._held_bytes = memory.reserved_bytes if self._reserves else memory.allocated_bytes
        parts = {k: v for k, v in totals.parts.items() if k in _LOSS_PARTS}
        return StepFinished(
            loss=totals.loss,
            parts=parts,
            grad_norm=self._norm,
            clip=self._clip,
            clipped=self._clip is not None and self._norm > self._clip,
            skipped=not self.may_update(),
            lr=schedule * scale,
            lr_schedule=schedule,
            lr_scale=scale,
            epoch=self.source.epoch,
            tokens=totals.tokens,
            samples=totals.samples,
            step_s=step_s,
            data_s=tally.data_s,
            compute_s=tally.compute_s,
            optimizer_s=tally.optimizer_s,
            tokens_per_s=totals.tokens / step_s,
            samples_per_s=totals.samples / step_s,
            mem_allocated_bytes=memory.allocated_bytes,
            mem_reserved_bytes=memory.reserved_bytes,
            mem_total_bytes=memory.total_bytes,
            rss_bytes=memory.rss_bytes,
            gpu_util=memory.gpu_util,
            gpu_temp_c=memory.gpu_temp_c,
            gpu_power_w=memory.gpu_power_w,
            skew_s=totals.skew_s,
            pcie_bytes_per_s=memory.pcie_bytes_per_s,
            **self._by_rank(totals),
            extra=self._extra(totals),
        )

    @staticmethod
    def _by_rank(totals: StepTotals) -> dict[str, Any]:
        """Figures of every rank, where there are several."""
        names = ("rank_s", "rank_mem_bytes", "rank_util", "rank_temp_c", "rank_power_w")
        several = len(totals.rank_s) > 1
        return {name: getattr(totals, name) for name in names} if several else {}

    def _extra(self, totals: StepTotals) -> dict[str, float]:
        found = {k: v for k, v in totals.parts.items() if k not in _LOSS_PARTS}
        return found if self._scale is None else {**found, "loss_scale": self._scale}
