"""Step conclusion: gives a step its verdict, journals it, and passes it to the monitor.

With an update gate, the figures of a step are read during the first forward pass of the next step,
or at the boundary if other work is due there, so that the device never waits for the host. If the
late verdict requires work at the boundary, the step in progress is dropped, so that the result is
the same as with a verdict at the boundary.

Where the step in progress can be dropped in the same way, the anomaly detector may also check a
step that late: on a thread of its own, while the training thread waits for the next backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from ...core.anomaly import Alert
from ...core.guard import Limits, UpdateVerdict, nothing_to_learn
from ...core.memory_watch import MemoryPlanCheck
from ...protocol.events import GradientsMeasured, StepFinished
from ..control.control_state import ControlState
from ..distributed.agreement import Agreement
from ..event_log import EventLog
from ..monitoring.monitor import TrainingMonitor
from ..usage.budget import RunMeter
from .background_call import BackgroundCall
from .memory_meter import MemoryReading
from .step_metrics import DeviceReading, lists_ranks, start_total
from .step_record import StepRecord
from .update_gate import UpdateGate

FIRST_TOLD = 3
"""Steps without targets that are logged one by one."""


class Flow(Protocol):
    """Measures the gradient flow of one update."""

    @property
    def measuring(self) -> bool:
        """Whether the current update is being measured."""

    def before(self, reason: str, *, scale: float) -> None:
        """Measure the gradients before the update; clipping has multiplied them by `scale`."""

    def after(self) -> GradientsMeasured:
        """Measure what the update has changed, and return the norms of every module."""


class Tellings:
    """Logs a warning that may recur: the first times, then at every power of 10."""

    def __init__(self, event_log: EventLog) -> None:
        self._event_log = event_log
        self._count = 0

    def tell(self, text: str) -> None:
        """Count the warning, and log it with its number if it is due."""
        self._count += 1
        if self._count <= FIRST_TOLD or self._count == 10 ** round(math.log10(self._count)):
            more = f" ({self._count:,} such steps so far)" if self._count > 1 else ""
            self._event_log.log("warning", f"{text}{more}")


class Measurements(NamedTuple):
    """What is measured beside a step."""

    flow: Flow
    meter: RunMeter
    memory_plan: MemoryPlanCheck | None = None
    """Comparison of steps with the memory plan; None without a plan."""


class StepConclusion:
    """Holds a step from its last backward pass until its verdict is known and journaled."""

    def __init__(
        self,
        event_log: EventLog,
        control: ControlState,
        monitor: TrainingMonitor,
        agreement: Agreement,
        *,
        set_lr: Callable[[float], None],
        measured: Measurements,
        after_update: Sequence[Callable[[], None]] = (),
    ) -> None:
        self._event_log = event_log
        self._control = control
        self._monitor = monitor
        self._agreement = agreement
        self._set_lr = set_lr
        self._flow, self._meter, self._memory_plan = measured
        self._after_update = after_update
        """Functions to call after each update that has changed the weights."""
        self.gate: UpdateGate | None = None
        """The gate by which the device applies updates; None if the host decides on each."""
        self._loss_scale: Callable[[], float] | None = None
        self.step: StepRecord | None = None
        """The step that is checked or waits for its verdict; None once it is journaled."""
        self._unobserved: tuple[StepRecord, StepFinished] | None = None
        """The journaled step that the monitor has not checked yet."""
        self._background: BackgroundCall[list[Alert]] | None = None
        """Runs the detector beside the backward pass of the next step; None runs it at once."""
        self._without_targets = Tellings(event_log)
        self._held_bytes: int | None = None
        """Memory of the previous step in bytes; None before the first one and without a GPU."""

    def begin(self, gate: UpdateGate | None, loss_scale: Callable[[], float] | None) -> None:
        """Set the gate of the optimizer and the loss scale of fp16 training; None without them."""
        self.gate, self._loss_scale = gate, loss_scale

    def observe_late(self) -> None:
        """From now on, let the detector check each step during the next one (`observe_aside`)."""
        self._background = BackgroundCall("detector")

    def limits(self) -> Limits:
        """Return the largest loss and gradient norm with which an update may pass the gate."""
        return self._monitor.limits()

    def take(self, step: StepRecord) -> None:
        """Hold a step whose gradients are ready, and set the learning rate of its update."""
        self.step = step
        self._set_lr(step.lr)

    def decide(self, step: StepRecord) -> None:
        """Read the figures of a step, measure its gradients if needed, and give the verdict."""
        own = step.known
        reason = self._monitor.wants_gradients(own.loss, own.grad_norm)
        if reason and (step.held is None or (own.held and step.gradients)):
            self._flow.before(reason, scale=step.clip_factor)
        totals = start_total(
            own,
            step.tally,
            step.clock.lapped_s(),
            self._agreement,
            self._reading(step.memory),
            self._meter.own,
            lacking=(lacking := self._lacks_targets(step)),
            listed=lists_ranks(step.number, self._agreement.world_size),
        )
        # All ranks have sent their figures, so one that waits for them waits for no decision.
        if step.tally.without_targets or (lacking and totals.read().without_targets):
            step.tally.mark_without_targets()
            decision = nothing_to_learn(step.number)
        else:
            decision = self._monitor.judge(step.number, own.loss, own.grad_norm, step.nonfinite)
        step.judged(decision, totals, self._loss_scale() if self._loss_scale else None)

    def _lacks_targets(self, step: StepRecord) -> bool:
        """Return whether a script has a loss of NaN or 0 on this rank because it has no target.

        An update that the device has applied is not taken back.
        """
        own = step.known
        applied = step.held is not None and not own.held
        odd = math.isnan(own.loss) or (own.loss == 0 and not applied)
        return odd and step.tally.all_lack_targets

    def _reading(self, now: MemoryReading) -> DeviceReading:
        return DeviceReading(self._held_bytes, now.gpu_util, now.gpu_temp_c, now.gpu_power_w)

    def updated(self) -> None:
        """Call the functions that follow a change of the weights."""
        for follow in self._after_update:
            follow()

    def conclude(self) -> None:
        """Journal the step that has ended, if there is one, and let the monitor check it.

        The step in progress is dropped if the device held the ended one's update back, if the model
        was run for a report, or if a command or a halt follows.
        """
        self.journal()
        self.observe()

    def while_held(self) -> None:
        """Measure the usage of the run from time to time while training is paused or halted."""
        self._meter.while_held()

    def journal(self) -> None:
        """Journal the step that has ended, if there is one.

        The monitor checks it at once, unless it may do so later (see `observe_aside`) and the
        update of the step was applied.
        """
        step = self.step
        if step is None or not step.ended:
            return
        self.observe()
        gate = self.gate
        held = gate is not None and step.held is not None and self._pass_late(gate, step)
        self.step = None
        self._unobserved = step, self._record(step)
        if self._background is None or step.verdict is not UpdateVerdict.APPLY:
            self.observe()
        if held or self._control.wanted_at_boundary:
            self._control.drop_step()

    def observe_aside(self) -> None:
        """Start the detector on the journaled step, on another thread, before a backward pass.

        Nothing is done without such a step, or where the monitor checks steps at once.
        """
        background = self._background
        if background is not None and self._unobserved is not None and not background.running:
            background.start(partial(self._monitor.take, self._unobserved[1]))

    def observe(self) -> None:
        """Let the monitor check the journaled step, if it has not, and act on what it finds.

        The step in progress is dropped if the model was run for a report, or if a command follows.
        """
        if self._unobserved is None:
            return
        (step, event), self._unobserved = self._unobserved, None
        background = self._background
        early = background is not None and background.running
        alerts = background.result() if background and early else self._monitor.take(event)
        settings = self._control.settings
        ran_model = self._monitor.follow(alerts, step.seen, settings, step.refused)
        self._act(step)
        if ran_model or self._control.wanted_at_boundary:
            self._control.drop_step()

    def _pass_late(self, gate: UpdateGate, step: StepRecord) -> bool:
        """Decide on a step after the device has applied its update or held it back.

        An update that was held back is applied now if the guard allows it. Return whether the
        device held it back for the host; a final gate never does.
        """
        step.timed(step.clock.took_s())
        held = step.known.held
        for parameter, gradient in step.gradients if held else ():
            parameter.grad = gradient
        self.decide(step)
        if held and step.verdict is UpdateVerdict.APPLY:
            self._set_lr(step.lr)
            gate.step()
            self._set_lr(self._control.lr_schedule)
        for parameter, _ in step.gradients if held else ():
            parameter.grad = None
        if step.verdict is UpdateVerdict.APPLY:
            self.updated()
        return held and not gate.final

    def _record(self, step: StepRecord) -> StepFinished:
        """Record the event of a step, compare its memory with the plan, and return the event."""
        event = step.event(self._meter.total)
        self._held_bytes = step.held_bytes(reserves=self._reserves)
        self._event_log.record(event)
        if event.without_targets:
            self._without_targets.tell(step.refused)
        if event.usage is not None:
            self._meter.check(event.usage)
        if self._flow.measuring:
            self._event_log.record(self._flow.after())
        self._compare(event)
        return event

    def _compare(self, event: StepFinished) -> None:
        """Log a warning if the step takes more memory than planned."""
        if self._memory_plan is None:
            return
        own = event.mem_reserved_bytes if self._reserves else event.mem_allocated_bytes
        warning = self._memory_plan.over(max([own or 0, *event.rank_mem_bytes]))
        if warning is not None:
            self._event_log.log("warning", warning)

    @property
    def _reserves(self) -> bool:
        """Whether reserved memory is compared, because allocated memory excludes that of graphs."""
        return self._memory_plan is not None and self._memory_plan.measure == "reserved"

    def _act(self, step: StepRecord) -> None:
        """Queue the rollback that the guard wants, or halt; queue what the autopilot decides."""
        wants_back = step.verdict is UpdateVerdict.ROLLBACK
        spared = wants_back and self._monitor.spares_rollback(step.number)
        back = self._monitor.way_back() if wants_back and not spared else None
        if spared:
            text = "one odd record explains the step; its update is skipped without a rollback"
            self._event_log.log("warning", text)
        elif back is not None:
            self._control.demand(back)
        elif step.verdict in (UpdateVerdict.HALT, UpdateVerdict.ROLLBACK):
            self._control.halt(step.refused)
        if wanted := self._monitor.wanted(self._control.settings.autopilot):
            command, reason = wanted
            self._control.demand(command, "autopilot", reason)
