"""Controlled session: builds everything that controls and records a trainer, in dependency order.

It uses the trainer only as a `ControlledTrainer`, so it works with any training loop that calls the
hooks of `step_loop`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from ..config.checks.budget import budget_of, price_of
from ..config.schema import RunConfig
from ..core.memory_watch import MemoryPlanCheck
from ..core.schedules import PlannedSteps
from ..protocol.events import AnomalyResolved, RolledBack
from ..protocol.settings import RunSettings
from ..protocol.states import RunState
from ..protocol.usage.amounts import Usage
from ..run.checkpoint_store import CheckpointStore, Manifest
from ..run.identity.run_identity import RunIdentity
from ..run.journal_summary import JournalSummary
from ..run.run_dir import RunDirectory
from ..telemetry.gpu import BackgroundSampler
from .checkpoint.checkpointer import Checkpointer
from .checkpoint.mean import CheckpointMean
from .control.command_executor import CommandExecutor
from .control.command_queue import CommandQueue
from .control.command_scheduler import CommandScheduler, command_failed
from .control.control_state import ControlState
from .control.controlled_trainer import ControlledTrainer
from .control.culprit_search import CulpritFinder, Repeatable
from .control.memory_release import MemoryRelease
from .control.profiling import NoProfiler, Profiler
from .control.settings_store import load_desired, store_desired
from .control.step_replay import NoReplay, OnRequest
from .distributed.agreement import Agreement
from .distributed.nodes import ONE_NODE, NodePlace
from .event_log import EventLog
from .loop.memory_meter import MemoryMeter, sampler_of
from .loop.step_conclusion import Flow, Measurements, StepConclusion
from .loop.step_loop import StepLoop
from .monitoring.anomaly_reporter import AnomalyReporter
from .monitoring.gradient_flow import GradientFlow
from .monitoring.monitor import TrainingMonitor, build_monitor
from .session_start import SessionStart
from .signals import StopSignals
from .usage.budget import RunMeter, require_power
from .usage.meter import UsageMeter


@dataclass(frozen=True)
class SessionOutcome:
    """The result of a session: the final state of the run, and its newest checkpoint."""

    state: RunState
    checkpoint: str | None
    """Name of the newest complete checkpoint; None without one."""
    unsaved: str = ""
    """Why the last state could not be saved; empty if it is on disk or was not to be saved."""
    reason: str = ""
    """Why the run was stopped; empty if it was not, or nobody gave a reason."""
    usage: Usage | None = None
    """What the run has used, over all of its starts."""
    signalled: bool = False
    """Whether a signal to one of the ranks has ended the run."""


@dataclass(frozen=True)
class SessionParts:
    """The parts from which a controlled session is built."""

    config: RunConfig
    run: RunDirectory
    incarnation: int
    """Number of this engine process among those of the run."""
    agreement: Agreement
    event_log: EventLog
    monitor: TrainingMonitor
    queue: CommandQueue
    control: ControlState
    trainer: ControlledTrainer
    device: torch.device
    flow: Flow
    meter: RunMeter
    sampler: BackgroundSampler | None = None
    """Reads the sensors of the device; None without a GPU."""
    profiler: Profiler | None = None
    """None for a trainer that cannot be profiled."""
    repeatable: Repeatable | None = None
    """None for a trainer whose steps cannot be repeated."""
    memory_plan: MemoryPlanCheck | None = None
    identity: RunIdentity | None = None
    """Hashes of the run's model and data; None on ranks other than 0."""
    after_update: Sequence[Callable[[], None]] = ()
    """Functions to call after each update that has changed the weights."""
    nodes: NodePlace = ONE_NODE
    finishes: bool = True
    """Whether the run ends with an evaluation and a checkpoint; a watched script has its own."""
    memory_every_s: float = 0.0
    """Least seconds between two readings of a GPU's memory."""


class ControlledSession:
    """The control around one trainer, from its first step to its last."""

    def __init__(self, parts: SessionParts) -> None:
        event_log, control, trainer = parts.event_log, parts.control, parts.trainer
        if trainer.position is not event_log.position:
            raise ValueError("trainer and event log must share the same Position object")
        self._event_log = event_log
        self._control = control
        self._monitor = parts.monitor
        self._queue = parts.queue
        self._finishes = parts.finishes
        self._meter = parts.meter
        conclusion = StepConclusion(
            event_log,
            control,
            parts.monitor,
            parts.agreement,
            set_lr=trainer.set_lr,
            measured=Measurements(parts.flow, parts.meter, parts.memory_plan),
            after_update=parts.after_update,
        )
        self._commands = CommandScheduler(
            parts.queue,
            event_log,
            control,
            conclusion,
            MemoryRelease(trainer, parts.agreement, event_log.log),
            refuses=trainer.refuses,
        )
        checkpointer = Checkpointer(
            parts.run,
            trainer.state,
            parts.agreement,
            parts.incarnation,
            parts.identity,
            parts.nodes,
        )
        on_request = self._on_request(parts, checkpointer)
        self._executor = CommandExecutor(
            parts.config,
            event_log=event_log,
            control=control,
            trainer=trainer,
            checkpointer=checkpointer,
            monitor=parts.monitor,
            on_request=on_request,
            ends_evaluation=self._commands.ends_evaluation,
        )
        self.step_loop = StepLoop(
            source=trainer.data,
            control=control,
            commands=self._commands,
            executor=self._executor,
            conclusion=conclusion,
            on_request=on_request,
            memory=MemoryMeter(parts.device, every_s=parts.memory_every_s, sampler=parts.sampler),
            device=parts.device,
        )

    def _on_request(self, parts: SessionParts, checkpointer: Checkpointer) -> OnRequest:
        profiler = parts.profiler or NoProfiler()
        if parts.repeatable is None:
            return OnRequest(profiler, NoReplay(), None)
        finder = CulpritFinder(
            parts.run,
            parts.repeatable,
            checkpointer,
            parts.event_log,
            parts.agreement,
            self._commands.ends_replay,
        )
        mean = CheckpointMean(parts.run, parts.repeatable.state, checkpointer, parts.agreement)
        return OnRequest(profiler, finder, mean)

    def resume(
        self, checkpoint: str | None, history: JournalSummary, steps: int
    ) -> Manifest | None:
        """Restore a checkpoint before the first step, and open a new timeline if steps are lost.

        Return the manifest of the checkpoint, or None if training starts from the beginning.

        Args:
            checkpoint: name or step of the checkpoint, or `last`; None starts from the beginning.
            history: summary of the events that earlier processes of this run journaled.
            steps: total number of planned optimizer steps.

        Raises:
            CheckpointError: the checkpoint is not usable.
            TrainingFailed: the ranks have restored different states.
        """
        resumed = self._executor.resume_from(checkpoint) if checkpoint else None
        if resumed and resumed.step >= steps:
            self._control.mark_complete()
        self._open_timeline(history, resumed)
        return resumed

    def _open_timeline(self, history: JournalSummary, resumed: Manifest | None) -> None:
        """Open a new timeline if the journal holds steps after the checkpoint.

        Open anomalies of those steps are then resolved as rolled back. If the journal ends before
        the checkpoint, a warning is logged.
        """
        log = self._event_log
        to_step = resumed.step if resumed else 0
        if history.step < to_step and history.newest is not None:
            text = (
                f"the journal ends at step {history.step}, before the checkpoint of step {to_step}"
            )
            lost = "the records in between were lost, but no training state was"
            log.log("warning", f"{text}; {lost}")
        if history.step <= to_step:
            return
        log.record(
            RolledBack(
                checkpoint=resumed.name if resumed else "the beginning",
                from_step=history.step,
                to_step=to_step,
                old_timeline=history.timeline,
                new_timeline=log.open_timeline(),
            )
        )
        for anomaly, step in history.unresolved.items():
            if step > to_step:
                log.record(AnomalyResolved(id=anomaly, verdict="rolled back"))

    def conclude(self) -> SessionOutcome:
        """Evaluate and save if due at the end, refuse waiting commands, and return the outcome."""
        control, executor = self._control, self._executor
        due = executor.owes_evaluation or not control.complete
        if not control.ending and due:
            if self._finishes and not executor.finish():
                self._commands.perform_due(executor)
        elif control.complete:
            text = (
                "all planned steps were already done; to train further, resume with a larger "
                "number of steps: --max-steps N"
            )
            self._event_log.log("warning", text)
        state = RunState.STOPPED if control.ending else RunState.FINISHED
        state = RunState.UNSAVED if executor.unsaved else state
        self._commands.refuse_rest(
            "the run was stopped" if control.ending else "the run has finished"
        )
        usage = self._meter.measure()
        self._queue.close()
        if due and not (control.ending and self._finishes):
            # Anomalies of a run that was stopped wait for the process that resumes it.
            self._monitor.end()
        signalled = control.ending and self._commands.signalled
        return SessionOutcome(
            state, executor.newest, executor.unsaved, control.ended_for, usage, signalled
        )


def meter_of(
    start: SessionStart,
    config: RunConfig,
    agreement: Agreement,
    sampler: BackgroundSampler | None,
    event_log: EventLog,
    control: ControlState,
) -> RunMeter:
    """Return the meter of a run with its budget; all ranks call this together.

    A run that only measures something has no budget.

    Raises:
        ConfigError: the budget limits energy, and a rank cannot read the power of its device.
    """
    meter = UsageMeter(agreement, start.used, start.began, sampler)
    if start.measures_only:
        budget = None
    else:
        require_power(config, meter)
        budget = budget_of(config)
    return RunMeter(
        meter,
        event_log,
        price_of(config),
        budget,
        start.run.id,
        partial(control.stop, "budget"),
    )


def open_control(
    start: SessionStart,
    config: RunConfig,
    queue: CommandQueue,
    event_log: EventLog,
    monitor: TrainingMonitor,
    why_not_kept_out: Callable[[Sequence[str]], str] = lambda ids: "",
    sources: Sequence[str] = (),
) -> ControlState:
    """Return the control state with the settings to start with (see `load_desired`).

    Commands that earlier processes of the run left without an outcome are recorded as failed.
    """

    def store(settings: RunSettings) -> None:
        try:
            if queue.leads:
                store_desired(start.run, settings, config)
        except OSError as error:
            event_log.log("error", f"settings not stored; a restart would lose them: {error}")

    initial = load_desired(start.run, config, restarted=start.attempt.repeated, paused=start.paused)
    for change in initial.overridden:
        event_log.log("warning", f"the configuration overrides a stored setting: {change}")
    control = ControlState(
        initial.desired,
        event_log.position,
        norm_percentile=monitor.norm_percentile,
        why_not_kept_out=why_not_kept_out,
        sources=sources,
        planned=_planned_steps(config),
        store=store,
    )
    left_over = queue.left_over(start.control_seq, start.history.answered)
    for entry in [] if start.loads_again else left_over:
        reason = "the engine ended before the command was applied; send it again"
        event_log.record(command_failed(entry, reason))
    return control


def _planned_steps(config: RunConfig) -> PlannedSteps | None:
    """Return the end of the schedule; None without planned steps."""
    train = config.train
    return None if train.steps is None else PlannedSteps(train.steps, train.lr * train.lr_floor)


class Controlled(NamedTuple):
    """A controlled session, and those of its parts that the caller needs."""

    session: ControlledSession
    monitor: TrainingMonitor
    control: ControlState


@dataclass(frozen=True, kw_only=True)
class ControlSetup:
    """The inputs, known before the trainer is built, from which `over` builds its control."""

    start: SessionStart
    """Run folder, history and launch options."""
    config: RunConfig
    agreement: Agreement
    event_log: EventLog
    signals: StopSignals
    device: torch.device
    """Device of this rank."""
    incarnation: int = 1
    """Number of the process in the run."""
    finishes: bool = True
    """Whether the run ends with an evaluation and a checkpoint."""
    memory_every_s: float = 0.0
    """Least seconds between two readings of a GPU's memory."""
    guards: bool = True
    """Whether the trainer can refuse an update before it is applied."""

    def over(self, trainer: ControlledTrainer, model: nn.Module, tokenizer: Any) -> Controlled:
        """Build control, monitor and checkpoints around a trainer; all ranks call this together.

        Args:
            trainer: the trainer to control.
            model: the model whose gradients are measured.
            tokenizer: decodes the rows that a report shows.
        """
        run, event_log, agreement = self.start.run, self.event_log, self.agreement
        reporter = AnomalyReporter(run, event_log, tokenizer, agreement)
        monitor = build_monitor(
            self.config,
            CheckpointStore(run),
            event_log,
            reporter,
            agreement,
            refuses=self.guards,
        )
        queue = CommandQueue(run, agreement, self.signals, event_log.folder_losses)
        control = open_control(self.start, self.config, queue, event_log, monitor)
        sampler = sampler_of(self.device)
        parts = SessionParts(
            config=self.config,
            run=run,
            incarnation=self.incarnation,
            agreement=agreement,
            event_log=event_log,
            monitor=monitor,
            queue=queue,
            control=control,
            trainer=trainer,
            device=self.device,
            flow=GradientFlow(model),
            meter=meter_of(self.start, self.config, agreement, sampler, event_log, control),
            sampler=sampler,
            finishes=self.finishes,
            memory_every_s=self.memory_every_s,
        )
        return Controlled(ControlledSession(parts), monitor, control)
