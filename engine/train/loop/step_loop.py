"""One optimizer step from boundary to boundary, as our side of it.

begin_step → fetch → (may_continue, forward, backward) × accumulate → judge → update → end_step

Where the device may let an update pass by itself, a step's figures are read while the next step's
first forward pass is computed, or at the boundary if anything else is to be done there. So the
device never waits for the host. What is read so late is as it would have been at the boundary:
the step in progress is dropped if anything has to be done there after all.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from ...core.guard import UpdateVerdict
from ...core.memory_watch import MemoryPlanCheck
from ...core.profile import VERDICT
from ...data.batch_source import Batch, BatchSource
from ...protocol.events import StepFinished
from ..control.command_scheduler import CommandScheduler
from ..distributed.agreement import Agreement
from ..distributed.place import StepClock
from ..event_log import EventLog
from ..monitoring.gradient_flow import GradientFlow
from ..monitoring.monitor import TrainingMonitor
from ..monitoring.profiler import StepProfiler
from ..monitoring.profiler_spans import span
from .memory_meter import MemoryReading
from .step_metrics import DeviceReading, StepMetrics, settle, start_total, summed
from .step_record import StepRecord
from .update_gate import UpdateGate


class StepLoop:
    """Measures, guards and journals steps; the conductor decides when they may run."""

    def __init__(
        self,
        *,
        source: BatchSource,
        commands: CommandScheduler,
        event_log: EventLog,
        monitor: TrainingMonitor,
        agreement: Agreement,
        memory: Callable[[], MemoryReading],
        device: torch.device,
    ) -> None:
        self.source = source
        self.tally = StepMetrics()
        self._commands = commands
        commands.conclude = self.conclude
        self._event_log = event_log
        self._monitor = monitor
        self._agreement = agreement
        self._memory = memory
        self._device = device
        self.begin: Callable[[], None] = lambda: None
        """Called once, when optimizer and schedule exist."""
        self.updated: Callable[[], None] = lambda: None
        """Called when an update has changed the weights."""
        self.gate: UpdateGate | None = None
        """Lets updates pass without the host; None waits for every verdict."""
        self.profiler: StepProfiler | None = None
        self.flow: GradientFlow | None = None
        """Measures the flow of an update when the monitor asks for it."""
        self.plan: MemoryPlanCheck | None = None
        """Says when steps take more memory than planned."""
        self.loss_scale: Callable[[], float | None] = lambda: None
        """What fp16 training multiplies its losses with now."""
        self._lr: Callable[[], float] = lambda: 0.0
        self._set_lr: Callable[[float], None] = lambda lr: None
        self._judged: StepRecord | None = None
        """The step that is being judged; the step before, if its verdict is still to come."""
        self._under_way = False
        """Between the boundary and the end of a step."""
        self._micro_batch = self._micro_batches = 0
        self._held_bytes: int | None = None
        """Peak memory of the step before."""
        self._clock = StepClock(device)

    def drive(self, schedule_lr: Callable[[], float], set_lr: Callable[[float], None]) -> None:
        """Connect the schedule and the optimizer's learning rate."""
        self._lr, self._set_lr = schedule_lr, set_lr

    def begin_step(self) -> bool:
        """Everything due at this boundary; False when the run ends here."""
        if not self._commands.at_boundary():
            return False
        if self.profiler:
            self.profiler.begin_step()
        self.tally = StepMetrics()
        self._clock = StepClock(self._device)
        self._micro_batch = 0
        self._under_way = True
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
        return first or not self._commands.interrupted()

    def may_differentiate(self) -> bool:
        """Before every backward pass; from the last one on, this rank waits for the others.

        The first one would overwrite the gradients of the step before, so until here it is known
        what became of them.
        """
        with span(VERDICT):
            self.conclude()
        self._clock.lap()
        return not self._commands.dropped

    def judge(self, clip: Callable[[float], Tensor]) -> Tensor:
        """Late settings, clipping, verdict; returns the gradient norm before clipping.

        The verdict needs no word from the other ranks: a loss that is not finite on one of them
        has made the gradients, and so their norm, not finite on all.
        """
        if self._commands.dropped:
            return torch.zeros(())
        self._commands.before_update()
        started = time.perf_counter()
        limit = self._commands.clip
        norm = clip(math.inf if limit is None else limit)
        loss = summed(self.tally, norm)
        held = self.gate.judge(loss, norm, self._monitor.limits()) if self.gate else None
        figures = settle(loss, norm, self.tally.parts, held)
        desired = self._commands.desired
        self._judged = StepRecord(
            number=self._event_log.step() + 1,
            tally=self.tally,
            clock=self._clock,
            figures=figures,
            held=held,
            gradients=self.gate.gradients() if self.gate else [],
            clip=limit,
            lr_schedule=self._lr(),
            lr_scale=desired.lr_scale,
            policy=desired.nonfinite,
            memory=self._memory(),
            seen=self.source.seen,
            epoch=self.source.epoch,
            judged_at=started,
        )
        self._set_lr(self._judged.lr)
        if self._device.type == "cuda":  # need not keep it waiting after the verdict
            self.source.prepare(self._micro_batches)
        if self.gate is None:
            self._decide(self._judged)
        return norm

    def _decide(self, step: StepRecord) -> None:
        """Read the figures, measure what stands out, and give the verdict."""
        own = step.known
        step.loss_scale = self.loss_scale()
        reason = self._monitor.wants_gradients(own.loss, own.grad_norm)
        if self.flow and reason and (step.held is None or own.held):
            self.flow.before(reason, scale=step.clip_factor)
        step.totals = start_total(
            own, step.tally, step.clock.lapped_s(), self._agreement, self._told(step.memory)
        )
        step.verdict = self._monitor.judge(step.number, own.loss, own.grad_norm, step.policy)

    def _told(self, now: MemoryReading) -> DeviceReading:
        return DeviceReading(self._held_bytes, now.gpu_util, now.gpu_temp_c, now.gpu_power_w)

    def may_update(self) -> bool:
        """The optimizer may change the weights, as far as the host knows."""
        judged = self._judged
        refused = judged is None or judged.verdict not in (None, UpdateVerdict.APPLY)
        return not refused and not self._commands.dropped

    def gated(self) -> AbstractContextManager[None]:
        """The update within is made if the device lets it pass."""
        held = self._judged.held if self._judged else None
        return nullcontext() if self.gate is None or held is None else self.gate.closed_if(held)

    def optimizer_stepped(self) -> None:
        """The weights have changed; behind a gate that is not known yet."""
        if self.gate is None and self.may_update():
            self.updated()

    def end_step(self, *, last: bool = False) -> bool:
        """Counters have moved: journal the step; False when it was dropped and taken back.

        Args:
            last: no other step follows.
        """
        self._under_way = False
        if self._commands.after_step():
            self._profiled(counted=False)
            return False
        judged = self._judged
        assert judged is not None, "judge() comes before end_step()"
        judged.end()
        if self.gate is None or last:
            self.conclude()
        self._profiled(counted=True)
        return True

    def conclude(self) -> None:
        """Journal the step whose update has been asked for; nothing when there is none.

        If that leaves something to do at its boundary, the step in progress is dropped.
        """
        step = self._judged
        if step is None or not step.ended:
            return
        held = self.gate is not None and self._pass_late(self.gate, step)
        self._judged = None
        self._finish(step)
        if self._under_way and (held or self._commands.wanted_at_boundary):
            self._commands.dropped = True

    def _pass_late(self, gate: UpdateGate, step: StepRecord) -> bool:
        """Decide on an update that the device may have held back; whether it has."""
        step.step_s = step.clock.took_s()
        held = step.known.held
        for parameter, gradient in step.gradients if held else ():
            parameter.grad = gradient
        self._decide(step)
        if held and step.verdict is UpdateVerdict.APPLY:
            self._set_lr(step.lr)
            gate.step()
            self._set_lr(self._lr())
        for parameter, _ in step.gradients if held else ():
            parameter.grad = None
        if step.verdict is UpdateVerdict.APPLY:
            self.updated()
        return held

    def _finish(self, step: StepRecord) -> None:
        event = step.event()
        self._held_bytes = step.held_bytes(reserves=self._reserves)
        self._event_log.record(event)
        if self.flow and self.flow.measuring:
            self._event_log.record(self.flow.after())
        self._monitor.observe(event, step.seen)
        self._compare(event)
        self._act(step)

    def _compare(self, event: StepFinished) -> None:
        if self.plan is None:
            return
        own = event.mem_reserved_bytes if self._reserves else event.mem_allocated_bytes
        said = self.plan.over(max([own or 0, *event.rank_mem_bytes]))
        if said is not None:
            self._event_log.log("warning", said)

    @property
    def _reserves(self) -> bool:
        """Graphs keep their memory, so what is allocated does not say what is taken."""
        return self.plan is not None and self.plan.measure == "reserved"

    def _profiled(self, *, counted: bool) -> None:
        if self.profiler:
            self.profiler.end_step(self.tally.tokens, counted=counted)

    def _act(self, step: StepRecord) -> None:
        way_back = self._monitor.way_back() if step.verdict is UpdateVerdict.ROLLBACK else None
        if way_back is not None:
            self._commands.demand(way_back)
        elif step.verdict in (UpdateVerdict.HALT, UpdateVerdict.ROLLBACK):
            self._commands.halted = self._monitor.reason
        if wanted := self._monitor.wanted(self._commands.desired.autopilot):
            command, reason = wanted
            self._commands.demand(command, "autopilot", reason)
