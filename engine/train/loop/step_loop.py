"""The hooks that a trainer calls during one optimizer step; they measure, guard and journal it.

begin_step → fetch → (may_continue, forward, may_backward, backward, record_loss) × accumulate →
check_update → may_update → optimizer step → optimizer_stepped → end_step

A trainer whose monitor checks a step during the next one calls after_backward after each backward.

A trainer calls the hooks in this order (see `control.controlled_trainer`); `hf_bridge` calls them
from the hooks of the Hugging Face loop.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor

from ...core.guard import UpdateVerdict
from ...core.profile import VERDICT
from ...data.batches.batch_source import Batch
from ..control.command_scheduler import CommandScheduler, OneShotCommands
from ..control.control_state import ControlState
from ..control.controlled_trainer import MicroBatchSource
from ..control.step_replay import OnRequest
from ..profiler_spans import span
from .memory_meter import MemoryMeter
from .step_clock import StepClock
from .step_conclusion import StepConclusion
from .step_metrics import StepMetrics, settle, summed
from .step_record import StepRecord
from .update_gate import UpdateGate


class StepLoop:
    """Measures, guards and journals steps; the command scheduler decides when they may run."""

    def __init__(
        self,
        *,
        source: MicroBatchSource,
        control: ControlState,
        commands: CommandScheduler,
        executor: OneShotCommands,
        conclusion: StepConclusion,
        on_request: OnRequest,
        memory: MemoryMeter,
        device: torch.device,
    ) -> None:
        self.source = source
        self.tally = StepMetrics()
        self._control = control
        self._commands = commands
        self._executor = executor
        self._conclusion = conclusion
        self._profiler, self._replay, _ = on_request
        self._memory = memory
        self._device = device
        self._micro_batch = self._micro_batches = 0
        self._clock = StepClock(device)

    def begin_training(
        self, gate: UpdateGate | None, loss_scale: Callable[[], float] | None
    ) -> None:
        """Set the gate of the optimizer and the loss scale of fp16 training; None without them."""
        self._conclusion.begin(gate, loss_scale)

    def observe_late(self) -> None:
        """Let the detector check a step during the backward pass of the next one.

        The trainer must call `after_backward`, where it can still drop that step.
        """
        self._conclusion.observe_late()

    def begin_step(self) -> bool:
        """Handle everything due at this boundary; return False if the run ends here."""
        replayed = self._replay.running
        while not self._replay.next_step():
            if replayed:
                self._memory.read()  # the peak of repeated steps must not count for the next one
            if not self._commands.at_boundary(self._executor):
                return False
            if not self._replay.running:
                self._profiler.begin_step()
                self._control.begin_step()
                break
        self.tally = StepMetrics()
        self._clock = StepClock(self._device)
        self._micro_batch = 0
        return True

    def fetch(self, micro_batches: int) -> list[Batch]:
        """Return the micro-batches of the step and count them."""
        with self.tally.time("data"), span("data"):
            batches = self.source.fetch(micro_batches)
            self._micro_batches = micro_batches
            for batch in batches:
                self.tally.count(batch)
        return batches

    def may_continue(self) -> bool:
        """Return whether the next micro-batch may run; False if the step is being dropped."""
        first, self._micro_batch = self._micro_batch == 0, self._micro_batch + 1
        return first or self._replay.running or not self._commands.interrupted()

    @contextmanager
    def unmeasured(self) -> Iterator[None]:
        """Within the block, keep losses and parts out of the metrics of the step, but not the time.

        An additional pass over its micro-batches runs in it.
        """
        own, self.tally = self.tally, StepMetrics()
        try:
            yield
        finally:
            own.add_compute_time(self.tally.compute_s)
            self.tally = own

    @property
    def dropped(self) -> bool:
        """Whether the step in progress is being dropped."""
        return self._control.dropped

    def record_loss(self, loss: Tensor) -> None:
        """Add the loss of a micro-batch, [], to the loss of the step."""
        self.tally.losses.append(loss)

    def may_backward(self) -> bool:
        """Return whether the next backward pass may run; False if the step is being dropped.

        The first backward pass overwrites the gradients of the previous step, which is therefore
        concluded here at the latest. After the last one, this rank waits for the other ranks.
        """
        with span(VERDICT):
            self._conclusion.journal()
        self._clock.lap()
        if self._control.dropped:
            return False
        self._conclusion.observe_aside()
        return True

    def after_backward(self) -> None:
        """Let the monitor check the step before; its verdict may drop the step in progress.

        A trainer calls it where it can still leave the step; `check_update` does it at the latest.
        """
        self._conclusion.observe()

    def check_update(self, clip: Callable[[float], Tensor]) -> Tensor:
        """Apply late settings, clip, check the update; return the gradient norm before clipping.

        For a step that is being dropped nothing is done, and the norm is 0.

        The verdict needs no message from other ranks: a loss that is not finite on one rank makes
        the averaged gradients, and so their norm, not finite on every rank.

        Args:
            clip: clips the gradients to a largest norm and returns their norm before that, [].
        """
        if self._replay.running:
            return self._check_replayed(clip)
        self._conclusion.observe()
        if self._control.dropped:
            return torch.zeros(())
        self._commands.before_update()
        started = time.perf_counter()
        limit = self._control.clip
        norm = clip(math.inf if limit is None else limit)
        step = self._record(norm, limit, started)
        self._conclusion.take(step)
        if self._device.type == "cuda":  # while the device is busy, not after the verdict
            self.source.prepare(self._micro_batches)
        if step.held is None:
            self._conclusion.decide(step)
        return norm

    def _check_replayed(self, clip: Callable[[float], Tensor]) -> Tensor:
        """Clip the gradients of a step that is repeated, and pass its figures to the replay."""
        limit = self._replay.clip
        norm = clip(math.inf if limit is None else limit)
        own = settle(summed(self.tally, norm), norm, self.tally).read()
        self._replay.judge(own.loss, own.grad_norm)
        return norm

    def _record(self, norm: Tensor, limit: float | None, started: float) -> StepRecord:
        """Return the record of a step whose gradients are ready."""
        gate, settings = self._conclusion.gate, self._control.settings
        position = self._control.position
        loss = summed(self.tally, norm)
        # Without targets the host decides at once, and the device has nothing to hold back.
        limits = self._conclusion.limits() if gate and not self.tally.without_targets else None
        held = gate.judge(loss, norm, limits) if gate and limits and gate.decides(limits) else None
        return StepRecord(
            number=position.step + 1,
            tally=self.tally,
            clock=self._clock,
            figures=settle(loss, norm, self.tally, held),
            held=held,
            gradients=gate.gradients() if gate and held is not None else [],
            clip=limit,
            lr_schedule=self._control.lr_schedule,
            lr_scale=settings.lr_scale,
            nonfinite=settings.nonfinite,
            memory=self._memory.read(),
            seen=self.source.seen,
            epoch=self.source.epoch,
            judged_at=started,
        )

    def may_update(self) -> bool:
        """Return whether the optimizer may run; the device may still skip it (see `gated`)."""
        if self._replay.running:
            return self._replay.may_update()
        step = self._conclusion.step
        refused = step is None or step.verdict not in (None, UpdateVerdict.APPLY)
        return not refused and not self._control.dropped

    def gated(self) -> AbstractContextManager[None]:
        """Return a context in which the device skips the optimizer step if it must not be applied.

        Without a gate the context does nothing.
        """
        gate, step = self._conclusion.gate, self._conclusion.step
        held = step.held if step else None
        return nullcontext() if gate is None or held is None else gate.closed_if(held)

    def optimizer_stepped(self) -> None:
        """Call the functions that follow a change of the weights (see `StepConclusion.updated`).

        With a gate they are called later, with the verdict. For a repeated step they are not.
        """
        step = self._conclusion.step
        if self._replay.running:
            return
        if step is not None and step.held is None and self.may_update():
            self._conclusion.updated()

    def end_step(self, *, last: bool = False) -> bool:
        """End the step and return True, or undo it and return False if it was dropped.

        An ended step is journaled at once, or during the next one if a gate delays its verdict.

        Args:
            last: whether no other step follows.
        """
        if self._replay.running:
            return self._replay.end_step()
        if self._commands.after_step(self._executor):
            self._profiler.end_step(self.tally.tokens, counted=False, conclude=self.conclude)
            return False
        step = self._conclusion.step
        assert step is not None, "check_update() comes before end_step()"
        step.end()
        if last:
            self.conclude()
        elif step.held is None:
            self._conclusion.journal()
        self._profiler.end_step(self.tally.tokens, counted=True, conclude=self.conclude)
        return True

    def conclude(self) -> None:
        """Conclude the step that has ended, if there is one, and journal it."""
        self._conclusion.conclude()
