"""Control at the step boundary: the one place where a person's wish meets the training loop.

The loop asks four times per step: `at_boundary` before the batches are fetched, `interrupted`
before every further micro-batch, `before_update` with gradients ready, `after_step` when the
counters have moved. Commands take effect in the order they were accepted: a setting is applied at
once unless a one-shot command before it still waits. Pause, rollback and a stop signal do not wait
for a step to end: the step is dropped and started again later from its boundary, with the same
data and the same random numbers.

With several ranks the question what is new travels while a micro-batch is computed, so the answer
costs nothing and is one micro-batch old: of a command that comes just after the question left, at
most one more micro-batch is begun.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

import msgspec

from ...core.settings import (
    Inapplicable,
    RunSettings,
    SettingsContext,
    apply_setting,
    clip_now,
    is_setting,
    pause_if_due,
)
from ...protocol.commands import (
    AnyCommand,
    Pause,
    Recover,
    Resume,
    Rollback,
    RunSteps,
    Stop,
    describe_command,
)
from ...protocol.events import CommandAccepted, CommandApplied, CommandFailed
from ...protocol.states import RunState
from ...run.control_log import ControlEntry
from ..event_log import EventLog
from .command_queue import CommandQueue
from .offload import MemoryRelease, MemoryTaken

_HOLD_TICK_S = 0.1
"""How often the inbox is looked into while held; also keeps the side group alive."""


class Impossible(Exception):
    """A one-shot command that could not be carried out; nothing was changed."""


class OneShotCommands(Protocol):
    """The one-shot commands, carried out at a boundary on every rank."""

    def perform(self, command: AnyCommand, issuer: str) -> tuple[str, str]:
        """Do it and return old → new as a person reads it; raises `Impossible`."""

    @property
    def due(self) -> bool:
        """A checkpoint or an evaluation is due at this step."""
        ...

    def scheduled(self) -> None:
        """Checkpoints and evaluations that are due at this step."""

    def mark(self) -> None:
        """Remember this boundary."""

    def rewind(self) -> None:
        """Give back what the step in progress has changed."""


class CommandScheduler:
    """Applies settings and one-shot commands, holds the loop while paused or halted."""

    def __init__(
        self,
        command_queue: CommandQueue,
        event_log: EventLog,
        *,
        desired: RunSettings,
        norm_percentile: Callable[[float], float | None],
        on_desired: Callable[[RunSettings], None],
    ) -> None:
        self._command_queue = command_queue
        self._event_log = event_log
        self._desired = desired
        self.schedule_lr: Callable[[], float] = lambda: 0.0
        """The schedule's learning rate for the next update, before scaling."""
        self._norm_percentile = norm_percentile
        self._on_desired = on_desired
        self.conclude: Callable[[], None] = lambda: None
        """Called before anything happens at a boundary: the step before has to be over."""
        self._due: deque[ControlEntry] = deque()
        self._executor: OneShotCommands | None = None
        self.dropped = False
        """The step in progress is being dropped."""
        self.halted: str | None = None
        """Why training may not go on by itself."""
        self.ending = False
        """The run ends at this boundary."""
        self.complete = False
        """All planned steps were done before this process came up."""
        self._signalled = False

    def attach(self, executor: OneShotCommands, lending: MemoryRelease) -> None:
        """Give it the hands for one-shot commands, and for the device's memory."""
        self._executor = executor
        self._lending = lending

    @property
    def _ops(self) -> OneShotCommands:
        assert self._executor is not None, "attach() comes first"
        return self._executor

    @property
    def desired(self) -> RunSettings:
        """The settings in force."""
        return self._desired

    @desired.setter
    def desired(self, value: RunSettings) -> None:
        if value != self._desired:
            self._desired = value
            self._on_desired(value)

    @property
    def clip(self) -> float | None:
        """Max grad norm of the next update; None is off."""
        return clip_now(self._desired, self._norm_percentile)

    def at_boundary(self) -> bool:
        """Do what is due before a step; False when the run ends here."""
        if self.complete:
            return False
        if self._event_log.state is RunState.STARTING:
            self._event_log.enter(RunState.RUNNING)
        desired = pause_if_due(self.desired, self._event_log.step())
        if self.wanted_at_boundary or self._ops.due or desired.paused:
            self.conclude()
        self._ops.mark()
        self.desired = desired
        self._look()
        self._perform_due()
        if not self.ending:
            self._ops.scheduled()
            self._perform_due()
        while self.held and not self.ending:
            self._enter_hold()
            if self.desired.release:
                self._lending.release()
            time.sleep(_HOLD_TICK_S)
            self._look()
            if not self._needs_device() or self._awake():
                self._perform_due()
        if self.ending:
            return False
        self._event_log.enter(RunState.RUNNING)
        self._command_queue.ask()
        return True

    @property
    def wanted_at_boundary(self) -> bool:
        """There is something to do before the next step."""
        return bool(self._due) or self.halted is not None

    @property
    def held(self) -> bool:
        """Training waits for a person."""
        return self.desired.paused or self.halted is not None

    def _needs_device(self) -> bool:
        return bool(self._due) or self._signalled or not (self.held and self.desired.release)

    def _awake(self) -> bool:
        """Have the device's memory back; otherwise stay held and say why."""
        try:
            self._lending.reclaim()
        except MemoryTaken as reason:
            self._event_log.log("error", str(reason))
            for entry in self._due:
                self.fail(entry, str(reason))
            self._due.clear()
            self.desired = msgspec.structs.replace(self.desired, paused=True, release=True)
            self.ending = self._signalled
            return False
        return True

    def _enter_hold(self) -> None:
        if self.halted is not None:
            self._event_log.enter(RunState.HALTED, self.halted)
        else:
            self._event_log.enter(RunState.PAUSED)

    def interrupted(self) -> bool:
        """Between micro-batches: True when this step is to be dropped."""
        if not self.dropped:
            self._look()
            urgent = any(
                isinstance(entry.command, Pause | Recover | Rollback) for entry in self._due
            )
            # Looking may have concluded the step before, and dropped this one because of it.
            self.dropped |= self.desired.paused or self._signalled or urgent
        if not self.dropped:
            self._command_queue.ask()
        return self.dropped

    def ends_evaluation(self) -> bool:
        """Between the batches of an evaluation: True when the run is to stop.

        What else comes meanwhile waits, as the evaluation was asked for before it.
        """
        self._look(busy=True)
        stop = self._signalled or any(isinstance(entry.command, Stop) for entry in self._due)
        if not stop:
            self._command_queue.ask()
        return stop

    def obey(self) -> None:
        """Do what waits, a stop above all."""
        self._perform_due()

    def before_update(self) -> None:
        """With gradients ready: settings that came during the step count for this update."""
        if not self.dropped:
            self._look()
            self._command_queue.ask()

    def after_step(self) -> bool:
        """Counters have moved; True when the step was dropped and has been taken back."""
        if not self.dropped:
            return False
        self.dropped = False
        self._ops.rewind()
        return True

    def _look(self, *, busy: bool = False) -> None:
        mail = self._command_queue.look()
        if mail.entries or mail.stop_signal:
            self.conclude()
        self._signalled = self._signalled or mail.stop_signal
        for entry in mail.entries:
            self._event_log.record(
                CommandAccepted(
                    id=entry.id,
                    command=describe_command(entry.command),
                    issuer=entry.issuer,
                    reason=entry.reason,
                )
            )
            if is_setting(entry.command) and not self._due and not busy:
                self._set(entry)
            else:
                self._due.append(entry)

    def _set(self, entry: ControlEntry) -> None:
        context = SettingsContext(self._event_log.step(), self.schedule_lr(), self._norm_percentile)
        try:
            change = apply_setting(self.desired, entry.command, context)
        except Inapplicable as reason:
            self.fail(entry, str(reason))
            return
        self.desired = change.desired
        if isinstance(entry.command, Resume | RunSteps):
            self.halted = None
        self._applied(entry, change.old, change.new)

    def _perform_due(self) -> None:
        while self._due and not self.ending:
            entry = self._due.popleft()
            if is_setting(entry.command):
                self._set(entry)
                continue
            try:
                old, new = self._ops.perform(entry.command, entry.issuer)
            except Impossible as reason:
                self.fail(entry, str(reason))
                continue
            self._applied(entry, old, new)
            self.ending = isinstance(entry.command, Stop)
        if self._signalled and not self.ending:
            self.ending = True
            try:
                self._ops.perform(Stop(), "signal")
            except Impossible as reason:
                self._event_log.log("error", f"stopping without a checkpoint: {reason}")

    def _applied(self, entry: ControlEntry, old: str, new: str) -> None:
        self._event_log.record(
            CommandApplied(
                id=entry.id,
                command=describe_command(entry.command),
                old=old,
                new=new,
                issuer=entry.issuer,
                reason=entry.reason,
                seconds=time.time() - entry.time,
            )
        )

    def fail(self, entry: ControlEntry, reason: str) -> None:
        """Answer a command that had no effect."""
        self._event_log.record(
            CommandFailed(
                id=entry.id,
                command=describe_command(entry.command),
                reason=reason,
                issuer=entry.issuer,
            )
        )

    def rolled_back(self, command: Rollback) -> None:
        """Take over the settings a rollback brings; a halt is over."""
        desired = self.desired
        if command.lr_scale is not None:
            desired = msgspec.structs.replace(desired, lr_scale=command.lr_scale)
        if command.clip is not None:
            desired = msgspec.structs.replace(desired, clip=command.clip, clip_percentile=None)
        self.desired = desired
        self.halted = None

    def demand(self, command: AnyCommand, issuer: str = "guard", reason: str = "") -> None:
        """Queue a command of guard or autopilot; every rank demands the same."""
        self._due.append(
            ControlEntry(
                seq=0,
                time=time.time(),
                id=f"{issuer}-{self._event_log.step()}",
                command=command,
                issuer=issuer,
                reason=reason,
            )
        )

    def refuse_rest(self, reason: str) -> None:
        """Answer everything still waiting, because the run ends."""
        asked_before = self._command_queue.look().entries
        for entry in [*self._due, *asked_before, *self._command_queue.look().entries]:
            self.fail(entry, reason)
        self._due.clear()
