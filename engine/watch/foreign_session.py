"""The engine's control around a trainer that fttui has not built."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import nn

from ..config.schema import RunConfig
from ..protocol.commands import SaveCheckpoint
from ..run.checkpoint_store import CheckpointStore
from ..run.journal_summary import summarize_journal
from ..run.run_dir import RunDirectory
from ..train.control.command_queue import CommandQueue
from ..train.control.controlled_trainer import ControlledTrainer
from ..train.controlled_session import ControlledSession, SessionParts, open_control
from ..train.distributed.agreement import Agreement
from ..train.distributed.place import RankPlace
from ..train.event_log import EventLog
from ..train.monitoring.anomaly_reporter import AnomalyReporter
from ..train.monitoring.gradient_flow import GradientFlow
from ..train.monitoring.monitor import TrainingMonitor, build_monitor
from ..train.session_start import SessionStart
from ..train.signals import StopSignals
from .refusals import Unwatchable
from .script_run import ScriptRun, shared_run


class ForeignSession(NamedTuple):
    """A controlled session and the monitor in it."""

    session: ControlledSession
    monitor: TrainingMonitor


def control_trainer(
    config: RunConfig,
    run: RunDirectory,
    event_log: EventLog,
    agreement: Agreement,
    place: RankPlace,
    trainer: ControlledTrainer,
    model: nn.Module,
    tokenizer: Any,
) -> ForeignSession:
    """Build the control around a trainer; every rank calls this together.

    Args:
        config: what is known of the run.
        run: folder of the run, the same on every rank.
        event_log: records the events of the run.
        agreement: agreement of the ranks.
        place: rank and device of this process.
        trainer: the trainer to control.
        model: the model whose gradients are measured.
        tokenizer: tokenizer for reports; None shows token ids.
    """
    reporter = AnomalyReporter(run, event_log, tokenizer or _Ids(), agreement)
    monitor = build_monitor(config, CheckpointStore(run), event_log, reporter, agreement)
    queue = CommandQueue(run, agreement, StopSignals(launched=False))
    start = SessionStart(run, summarize_journal(()))
    control = open_control(start, config, queue, event_log, monitor)
    if config.checkpoint.at_start and event_log.step:
        reason = "the script resumed by its own means"
        control.demand(SaveCheckpoint(), "fttui", reason)
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
            trainer=trainer,
            device=place.device,
            flow=GradientFlow(model),
            finishes=False,
        )
    )
    return ForeignSession(session, monitor)


def run_of_all(script_run: ScriptRun | None, agreement: Agreement) -> RunDirectory:
    """Return the run folder that rank 0 has opened, on every rank.

    Raises:
        Unwatchable: rank 0 could not open one.
    """
    path = agreement.share(str(script_run.run.path).encode() if script_run else b"").decode()
    if not path:
        raise Unwatchable("rank 0 has no run folder")
    return script_run.run if script_run else shared_run(path)


class _Ids:
    """Stands for a tokenizer where the trainer has none: shows token ids."""

    def decode(self, ids: list[int], **options: Any) -> str:
        """Return the ids as text."""
        return " ".join(map(str, ids))
