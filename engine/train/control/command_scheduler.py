"""Command scheduler: decides at which point of a step each command takes effect.

The step loop calls it four times per step: `at_boundary` before the batches are fetched,
`interrupted` before every further micro-batch, `before_update` when the gradients are ready, and
`after_step` at the end. Commands take effect in the order in which they were accepted: a setting is
applied at once unless a one-shot command before it still waits. Pause, rollback and a stop signal
do not wait for the end of a step: the step is dropped and later started again from its boundary,
with the same data and the same random numbers.

With several ranks, the question whether there are new commands travels while a micro-batch is
computed. So it costs nothing, and its answer is one micro-batch old: after a command that arrives
just after the question was sent, at most one more micro-batch begins.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Protocol

import msgspec

from ...core.profile import AT_BOUNDARY
from ...core.settings import (
    Inapplicable,
    SettingsChange,
    SettingsContext,
    apply_setting,
    leashed,
    pause_if_due,
)
from ...protocol.commands import (
    AnyCommand,
    Command,
    OneShotCommand,
    Pause,
    Propose,
    SaveCheckpoint,
    SettingCommand,
    Stop,
    TrainingAction,
    describe_command,
    spec_of,
)
from ...protocol.events import CommandAccepted, CommandApplied, CommandFailed
from ...protocol.settings import RunSettings
from ...protocol.states import RunState
from ...run.control_log import ControlEntry
from ..event_log import EventLog
from ..profiler_spans import span
from .command_queue import NewCommands
from .control_state import ControlState
from .memory_release import MemoryTaken

_HOLD_TICK_S = 0.1
"""Seconds between two looks at the queue while training is held; keeps the gloo group alive."""


class Impossible(Exception):
    """A one-shot command could not be carried out; nothing was changed."""


class OneShotCommands(Protocol):
    """Carries out one-shot commands at a boundary, on every rank."""

    @property
    def due(self) -> bool:
        """Whether an evaluation or a checkpoint that is made every so many steps is due now."""

    @property
    def repeating(self) -> bool:
        """Whether a command has begun to repeat earlier steps, also of a run that is paused."""

    def perform(self, command: TrainingAction, issuer: str) -> tuple[str, str]:
        """Carry out a command; return the old and the new value for the journal.

        Raises:
            Impossible: the command cannot be carried out; nothing was changed.
        """

    def plan(self) -> None:
        """Queue the commands that are planned for this step."""

    def scheduled(self) -> None:
        """Run the evaluation and write the checkpoint that are due at this step.

        A checkpoint is also due at a new best metric. Early stopping may then end the run.
        """

    def mark(self) -> None:
        """Remember this boundary, to which a dropped step is rewound."""

    def prepare(self) -> None:
        """Put the settings in force that the next step is trained with from its first batch on."""

    def rewind(self) -> None:
        """Drop the step in progress: restore model and data to the boundary of the last `mark`."""


class Commands(Protocol):
    """New commands, equal on every rank."""

    def ask(self) -> None:
        """Start to agree with the other ranks on the new commands, before a longer computation."""

    def look(self) -> NewCommands:
        """Return the commands that are new since the last call."""


class ReleasableMemory(Protocol):
    """The device memory of all ranks."""

    def release(self) -> None:
        """Free the device memory of all ranks."""

    def reclaim(self) -> None:
        """Take the device memory of all ranks back.

        Raises:
            MemoryTaken: another process has it.
        """


class StepConcluder(Protocol):
    """Journals the step that ended last, whose loss and norm may still be on the device."""

    def conclude(self) -> None:
        """Journal the finished step, unless that has been done."""

    def while_held(self) -> None:
        """Measure the usage from time to time; called while training is paused or halted."""


class CommandScheduler:
    """Applies settings, passes one-shot commands to the executor, holds the loop while paused."""

    def __init__(
        self,
        queue: Commands,
        event_log: EventLog,
        control: ControlState,
        concluder: StepConcluder,
        memory: ReleasableMemory,
        *,
        refuses: Mapping[type[Command], str],
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._queue = queue
        self._event_log = event_log
        self._control = control
        self._concluder = concluder
        self._memory = memory
        self._refuses = refuses
        self._clock = clock
        self._sleep = sleep
        self.signalled = False
        """Whether a rank has received a signal to stop; all ranks know of it at the same step."""
        self._holding: tuple[ControlEntry, RunSettings, SettingsChange] | None = None
        """A pause that is in force and has not held training yet, so that it has no outcome."""

    def at_boundary(self, executor: OneShotCommands) -> bool:
        """Do everything that is due before a step; return False if the run ends here.

        While training is paused or halted, it waits here and carries out commands.
        """
        control = self._control
        if control.complete:
            return False
        if self._event_log.state is RunState.STARTING:
            self._event_log.enter(RunState.RUNNING)
        settings = pause_if_due(control.settings, self._event_log.step)
        executor.plan()
        if control.wanted_at_boundary or executor.due or settings.paused:
            self._concluder.conclude()
        executor.mark()
        control.change(settings)
        self._look()
        has_work = control.wanted_at_boundary or executor.due or control.held
        with span(AT_BOUNDARY) if has_work else nullcontext():
            self._work_at_boundary(executor)
        if control.ending:
            self._overtake("the run was stopped before training had paused")
            return False
        if not executor.repeating:
            self._event_log.enter(RunState.RUNNING)
            executor.prepare()
        self._queue.ask()
        return True

    def _work_at_boundary(self, executor: OneShotCommands) -> None:
        """Carry out what is due, and wait while training is paused or halted."""
        self.perform_due(executor)
        if not self._control.ending and not executor.repeating:
            executor.scheduled()
            self.perform_due(executor)
        self._hold(executor)

    def _hold(self, executor: OneShotCommands) -> None:
        """Wait here while training is paused or halted, and carry out commands meanwhile."""
        control = self._control
        while control.held and not control.ending and not executor.repeating:
            self._enter_hold()
            if control.settings.release:
                self._memory.release()
            self._sleep(_HOLD_TICK_S)
            self._look()
            self._concluder.while_held()
            if not self._needs_device() or self._has_device():
                self.perform_due(executor)

    def _needs_device(self) -> bool:
        control = self._control
        return (
            bool(control.due) or self.signalled or not (control.held and control.settings.release)
        )

    def _has_device(self) -> bool:
        """Take the device memory back; return False if another process has it.

        Then the waiting commands fail and the run stays paused, or ends after a stop signal.
        """
        try:
            self._memory.reclaim()
        except MemoryTaken as reason:
            control = self._control
            self._event_log.log("error", str(reason))
            for entry in control.due:
                self.fail(entry, str(reason))
            control.due.clear()
            control.change(msgspec.structs.replace(control.settings, paused=True, release=True))
            if self.signalled:
                control.end_run()
            return False
        return True

    def _enter_hold(self) -> None:
        if self._holding is not None:
            entry, previous, change = self._holding
            self._holding = None
            self._applied(entry, previous, change.old, change.new)
        if self._control.halted is not None:
            self._event_log.enter(RunState.HALTED, self._control.halted)
        else:
            self._event_log.enter(RunState.PAUSED)

    def interrupted(self) -> bool:
        """Look for commands between micro-batches; return True if the step is being dropped."""
        control = self._control
        if not control.dropped:
            self._look()
            urgent = any(spec_of(entry.command).urgent for entry in control.due)
            if control.settings.paused or self.signalled or urgent:
                control.drop_step()
        # Looking may also have concluded the step before, and dropped this one because of it.
        if not control.dropped:
            self._queue.ask()
        return control.dropped

    def ends_evaluation(self) -> bool:
        """Return True, between the batches of an evaluation, if the run is to stop.

        Other commands wait, because the evaluation was asked for before them.
        """
        self._look(busy=True)
        due = self._control.due
        stop = self.signalled or any(isinstance(entry.command, Stop) for entry in due)
        if not stop:
            self._queue.ask()
        return stop

    def ends_replay(self) -> bool:
        """Return True, between steps that are repeated, if a command does not wait for their end.

        These are the commands for which a step in progress is dropped, and a stop.
        """
        self._look(busy=True)
        due = [entry.command for entry in self._control.due]
        ends = self.signalled or any(isinstance(c, Stop) or spec_of(c).urgent for c in due)
        if not ends:
            self._queue.ask()
        return ends

    def before_update(self) -> None:
        """Apply settings that arrived during the step, so that they count for its update."""
        if not self._control.dropped:
            self._look()
            self._queue.ask()

    def after_step(self, executor: OneShotCommands) -> bool:
        """Undo the step if it was dropped; return whether it was dropped."""
        dropped = self._control.end_step()
        if dropped:
            executor.rewind()
        return dropped

    def _look(self, *, busy: bool = False) -> None:
        new = self._queue.look()
        if new.entries or new.stop_signal or new.save:
            self._concluder.conclude()
        self.signalled = self.signalled or new.stop_signal
        if new.save:
            note = "the checkpoints on disk were removed"
            self._control.demand(SaveCheckpoint(note=note), "engine", note)
        for entry in new.entries:
            self._event_log.record(
                CommandAccepted(
                    id=entry.id,
                    command=describe_command(entry.command),
                    issuer=entry.issuer,
                    reason=entry.reason,
                    proposal=entry.proposal,
                    expires_at=entry.expires_at if isinstance(entry.command, Propose) else None,
                )
            )
            waits = busy or self._control.due or self._waits_for_boundary(entry.command)
            if isinstance(entry.command, SettingCommand) and not waits:
                self._set(entry, entry.command)
            else:
                self._control.due.append(entry)

    def _waits_for_boundary(self, command: AnyCommand) -> bool:
        """Return whether a setting comes too late for the data of the step in progress."""
        return self._control.in_step and spec_of(command).at_boundary

    def _set(self, entry: ControlEntry, command: SettingCommand) -> None:
        if refused := self._refusal(command):
            self.fail(entry, refused)
            return
        control, position = self._control, self._event_log.position
        context = SettingsContext(
            position.step,
            control.lr_schedule,
            control.norm_percentile,
            control.why_not_kept_out,
            control.sources,
            control.total_steps,
        )
        try:
            change = apply_setting(control.settings, command, context)
            settings = leashed(control.settings, change.settings, entry.leash)
        except Inapplicable as reason:
            self.fail(entry, str(reason))
            return
        previous = control.settings
        control.change(settings)
        if spec_of(command).resumes:
            control.lift_halt()
            self._overtake(f"{describe_command(command)} came before training had paused")
        if isinstance(command, Pause) and not self._event_log.state.held:
            self._overtake("another pause came before training had paused")
            self._holding = entry, previous, change
        else:
            self._applied(entry, previous, change.old, change.new)

    def _overtake(self, reason: str) -> None:
        """Record that a pause that has not taken effect yet will have none."""
        if self._holding is not None:
            self.fail(self._holding[0], reason)
            self._holding = None

    def _refusal(self, command: AnyCommand) -> str | None:
        """Return why the trainer of this run cannot obey a command, or None if it can."""
        reason = self._refuses.get(type(command))
        return None if reason is None else f"not possible in this run: {reason}"

    def perform_due(self, executor: OneShotCommands) -> None:
        """Carry out the commands that wait for a boundary, then a stop signal.

        A stop ends the run at this boundary. While earlier steps are repeated, the training state
        is not the run's own, so that all commands wait until it is back.
        """
        control = self._control
        while control.due and not control.ending and not executor.repeating:
            entry = control.due.popleft()
            command = entry.command
            if isinstance(command, SettingCommand):
                self._set(entry, command)
            else:
                self._perform(entry, command, executor)
        if self.signalled and not control.ending and not executor.repeating:
            control.end_run()
            try:
                executor.perform(Stop(), "signal")
            except Impossible as reason:
                self._event_log.log("error", f"stopping without a checkpoint: {reason}")

    def _perform(
        self, entry: ControlEntry, command: OneShotCommand, executor: OneShotCommands
    ) -> None:
        if refused := self._refusal(command):
            self.fail(entry, refused)
            return
        previous = self._control.settings
        if not isinstance(command, TrainingAction):
            self._applied(entry, previous, "", entry.proposal)  # its acceptance has the details
            return
        try:
            with self._control.within(entry.leash):
                old, new = executor.perform(command, entry.issuer)
        except Impossible as reason:
            self.fail(entry, str(reason))
            return
        self._applied(entry, previous, old, new)
        if isinstance(command, Stop):
            self._control.end_run(entry.reason)

    def _applied(self, entry: ControlEntry, previous: RunSettings, old: str, new: str) -> None:
        self._event_log.record(
            CommandApplied(
                id=entry.id,
                command=describe_command(entry.command),
                old=old,
                new=new,
                issuer=entry.issuer,
                reason=entry.reason,
                seconds=self._clock() - entry.time,
                applied=entry.command,
                settings=self._control.settings,
                previous=previous,
            )
        )

    def fail(self, entry: ControlEntry, reason: str) -> None:
        """Record that a command had no effect, and why."""
        self._event_log.record(command_failed(entry, reason))

    def refuse_rest(self, reason: str) -> None:
        """Record every command that still waits as failed, because the run ends."""
        asked_before = self._queue.look().entries
        for entry in [*self._control.due, *asked_before, *self._queue.look().entries]:
            self.fail(entry, reason)
        self._control.due.clear()


def command_failed(entry: ControlEntry, reason: str) -> CommandFailed:
    """Return the event that says why a command had no effect."""
    return CommandFailed(
        id=entry.id,
        command=describe_command(entry.command),
        reason=reason,
        issuer=entry.issuer,
    )
