"""The session of a watched trainer: the control of the engine around it, built at its first step."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from ..config.schema import RunConfig
from ..protocol.commands import COMMANDS
from ..protocol.events import EvalFinished
from ..run.checkpoint_store import CheckpointStore
from ..run.journal_summary import summarize_journal
from ..train.control.command_queue import CommandQueue
from ..train.control.controlled_trainer import ALL_COMMANDS
from ..train.controlled_session import (
    ControlledSession,
    SessionOutcome,
    SessionParts,
    open_control,
)
from ..train.distributed.agreement import Agreement
from ..train.distributed.place import RankPlace
from ..train.distributed.rank_agreement import agreement_of
from ..train.event_log import EventLog
from ..train.loop.step_loop import StepLoop
from ..train.monitoring.anomaly_reporter import AnomalyReporter
from ..train.monitoring.gradient_flow import GradientFlow
from ..train.monitoring.monitor import TrainingMonitor, build_monitor
from ..train.patches import guard_optimizer, poison_nonfinite
from ..train.session_start import SessionStart
from ..train.signals import StopSignals
from .batch_tape import BatchTape
from .capabilities import Capabilities
from .checkpoint_plan import CheckpointPlan
from .foreign_state import ForeignState, Parts
from .hf_memory import HfMemory
from .hf_trainer import HfTrainer, plain_metrics, tokenizer_of
from .recording import Recording, shared_run
from .undo import Undo

_OWN_FIGURES = frozenset({"loss", "grad_norm", "learning_rate", "epoch"})
"""Logged figures that every step has anyway."""


class HfSession:
    """The control around a stock trainer, from its first step to its last."""

    def __init__(
        self,
        session: ControlledSession,
        trainer: HfTrainer,
        memory: HfMemory,
        event_log: EventLog,
        monitor: TrainingMonitor,
    ) -> None:
        self._session = session
        self._trainer = trainer
        self._memory = memory
        self._event_log = event_log
        self._monitor = monitor

    @property
    def step_loop(self) -> StepLoop:
        """The step hooks."""
        return self._session.step_loop

    def stepped(self) -> None:
        """Take note that the counters of the trainer have moved."""
        self._memory.stepped()

    def put_back_lr(self) -> None:
        """Put the learning rates of the schedule back."""
        self._trainer.put_back_lr()

    def told(self, kind: str, figures: dict[str, Any]) -> None:
        """Record an evaluation that the script runs by itself."""
        if kind != "evaluate" or self._trainer.evaluating:
            return
        seconds = float(figures.get("eval_runtime", 0.0))
        metrics = plain_metrics(figures)
        self._event_log.record(EvalFinished(metrics=metrics, seconds=seconds))
        if "loss" in metrics:
            self._monitor.evaluated(metrics)

    def conclude(self) -> SessionOutcome:
        """Refuse the commands that still wait, and return how the run ended."""
        return self._session.conclude()


def begin_session(
    trainer: Any,
    config: RunConfig,
    recording: Recording | None,
    event_log: EventLog,
    tape: BatchTape,
    capabilities: Capabilities,
    plan: CheckpointPlan,
    undo: Undo,
) -> HfSession:
    """Build the session of a trainer whose optimizer and schedule have been made; on every rank."""
    args = trainer.args
    place = RankPlace(int(args.process_index), int(args.world_size), args.device)
    agreement = agreement_of(place.rank, place.world_size)
    path = agreement.share(str(recording.run.path).encode() if recording else b"").decode()
    run = recording.run if recording else shared_run(path)
    memory = HfMemory(trainer, event_log.position)
    memory.stepped()
    parts = Parts(
        model=trainer.model,
        optimizer=trainer.optimizer,
        schedules=[trainer.lr_scheduler],
        scaler=trainer.accelerator.scaler,
    )
    state = ForeignState(parts, memory, tape, event_log.position)
    controlled = HfTrainer(
        trainer,
        event_log.position,
        state,
        tape,
        ALL_COMMANDS - capabilities.refused.keys(),
    )
    reporter = AnomalyReporter(run, event_log, tokenizer_of(trainer) or _Ids(), agreement)
    monitor = build_monitor(config, CheckpointStore(run), event_log, reporter, agreement)
    queue = CommandQueue(run, agreement, StopSignals(launched=False))
    start = SessionStart(run, summarize_journal(()))
    control = open_control(start, config, queue, event_log, monitor)
    session = ControlledSession(
        SessionParts(
            config=config,
            run=run,
            incarnation=1,
            agreement=agreement,
            event_log=event_log,
            monitor=monitor,
            queue=queue,
            control=control,
            trainer=controlled,
            device=place.device,
            flow=GradientFlow(trainer.model),
            finishes=False,
        )
    )
    _patch(trainer, session.step_loop, undo)
    _announce(trainer, recording, event_log, agreement, place, state, capabilities, plan, tape)
    return HfSession(session, controlled, memory, event_log, monitor)


def _patch(trainer: Any, step_loop: StepLoop, undo: Undo) -> None:
    scaler = trainer.accelerator.scaler
    step_loop.begin_training(None, None if scaler is None else lambda: float(scaler.get_scale()))
    undo.remember(trainer.optimizer, "step")
    guard_optimizer(trainer.optimizer, step_loop)
    undo.remember(trainer.accelerator, "backward")
    poison_nonfinite(trainer.accelerator, step_loop)


def _announce(
    trainer: Any,
    recording: Recording | None,
    event_log: EventLog,
    agreement: Agreement,
    place: RankPlace,
    state: ForeignState,
    capabilities: Capabilities,
    plan: CheckpointPlan,
    tape: BatchTape,
) -> None:
    """Record the start again, with what is known now that everything has been loaded."""
    devices = [one.decode() for one in agreement.gather(place.description.encode())]
    if recording is None:
        return
    refused = {
        spec.verb: capabilities.refused[spec.command]
        for spec in COMMANDS
        if spec.command in capabilities.refused
    }
    kind = type(trainer)
    facts = {
        "trainer": f"{kind.__module__}.{kind.__qualname__}",
        "checkpoints": plan.fact,
        "batches kept": tape.limit_text,
        **{f"no {verb}": reason for verb, reason in refused.items()},
    }
    event_log.record(
        replace(
            recording.started,
            devices=devices,
            total_steps=int(trainer.state.max_steps),
            start_step=int(trainer.state.global_step),
            trainable_params=state.trained,
            total_params=sum(one.numel() for one in trainer.model.parameters()),
            facts=facts,
        )
    )


class _Ids:
    """Stands for a tokenizer where the trainer has none: shows token ids."""

    def decode(self, ids: list[int], **options: Any) -> str:
        """Return the ids as text."""
        return " ".join(map(str, ids))
