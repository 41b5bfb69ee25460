"""The session of a watched trainer: the engine's control around it, built before its first step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ...config.schema import RunConfig
from ...protocol.events import EvalFinished, SampleGenerated
from ...train.checkpoint.optimizer_state import bare
from ...train.controlled_session import ControlledSession, SessionOutcome
from ...train.distributed.agreement import Agreement
from ...train.distributed.place import RankPlace
from ...train.distributed.rank_agreement import agreement_of
from ...train.event_log import EventLog
from ...train.loop.step_loop import StepLoop
from ...train.loop.step_metrics import StepMetrics
from ...train.loop.update_gate import FinalGate, takes_verdicts
from ...train.loop.update_seams import connect_updates
from ...train.monitoring.monitor import TrainingMonitor
from ..batch_tape import BatchTape
from ..checkpoint_plan import CheckpointPlan
from ..foreign_session import broadcast_run, control_trainer, record_start
from ..foreign_state import ForeignState, Parts
from ..script_run import ScriptRun
from ..shield import Shield, ShieldedUpdates
from ..undo import Undo
from .capabilities import Capabilities
from .completions import NewestCompletion
from .memory import HfMemory
from .trainer import HfControlledTrainer, plain_metrics, tokenizer_of

_KEPT_SHARE = 1 / 64
"""Share of a device's memory that gradients may take which are kept until the verdict."""
_OWN_FIGURES = frozenset({"loss", "grad_norm", "learning_rate", "epoch", "num_tokens"})
"""Logged figures that every step of a run has anyway."""


@dataclass(frozen=True)
class Watched:
    """A trainer about to train, and what its session is built from."""

    trainer: Any
    config: RunConfig
    capabilities: Capabilities
    plan: CheckpointPlan
    script_run: ScriptRun | None
    """The open run; None on every rank but 0."""
    event_log: EventLog
    tape: BatchTape
    undo: Undo
    shield: Shield

    @property
    def place(self) -> RankPlace:
        """The rank and the device of this process."""
        args = self.trainer.args
        return RankPlace(int(args.process_index), int(args.world_size), args.device)


class GeneratedTokens:
    """Counts the tokens of a trainer that generates its data, whose batches hold prompts alone.

    What is generated at once serves several steps, which share its tokens equally.
    """

    def __init__(self, seen: Callable[[], int], steps: int) -> None:
        self._seen = seen
        self._steps = max(1, steps)
        self._before = seen()
        self._share = 0

    def of_step(self) -> int:
        """Return the tokens of this rank in the step that ends."""
        now = self._seen()
        if now > self._before:
            self._share = round((now - self._before) / self._steps)
        self._before = now
        return self._share


class HfSession:
    """The control around a stock trainer, from its first step to its last."""

    def __init__(
        self,
        session: ControlledSession,
        trainer: HfControlledTrainer,
        memory: HfMemory,
        event_log: EventLog,
        monitor: TrainingMonitor,
        tape: BatchTape,
        completions: NewestCompletion,
        *,
        alone: bool,
    ) -> None:
        self._session = session
        self._trainer = trainer
        self._memory = memory
        self._event_log = event_log
        self._monitor = monitor
        self._tape = tape
        self._completions = completions
        self._alone = alone
        self._generated = GeneratedTokens(trainer.tokens_seen, trainer.steps_per_generation)
        self._figures: dict[str, float] = {}
        """Figures that the trainer has logged since the last update."""

    @property
    def step_loop(self) -> StepLoop:
        """The step hooks."""
        return self._session.step_loop

    def stepped(self) -> None:
        """Take note that the counters of the trainer have moved."""
        self._memory.stepped()

    def restore_lr(self) -> None:
        """Restore the scheduled learning rates."""
        self._trainer.restore_lr()

    def add_figures(self, tally: StepMetrics) -> None:
        """Add what the trainer has logged, and the size of the tape, to the step being checked.

        Several ranks would have to log the same names, so only a single rank adds what is logged.
        """
        figures, self._figures = self._figures if self._alone else {}, {}
        tally.figures |= figures | {"batches_kept_mib": self._tape.size_bytes / 2**20}
        generated = self._generated.of_step()
        if not tally.tokens and not tally.uncounted:
            tally.tokens = generated

    def logged(self, figures: Mapping[str, Any]) -> None:
        """Keep figures that the trainer logs, such as rewards, for the next step.

        The newest completion that was generated for training is recorded as a sample.
        """
        self._figures |= {
            name: float(value)
            for name, value in figures.items()
            if name not in _OWN_FIGURES
            and isinstance(value, int | float)
            and not name.startswith(("eval_", "train_"))
        }
        if completion := self._completions.take():
            self._event_log.record(SampleGenerated(**completion._asdict()))

    def evaluated(self, figures: Mapping[str, Any]) -> None:
        """Record an evaluation that the script runs by itself, and leave out those of fttui."""
        if self._trainer.evaluating:
            return
        self.step_loop.conclude()
        metrics = plain_metrics(figures)
        seconds = float(figures.get("eval_runtime", 0.0))
        self._event_log.record(EvalFinished(metrics=metrics, seconds=seconds))
        if "loss" in metrics:
            self._monitor.evaluated(metrics)

    def conclude(self) -> SessionOutcome:
        """Refuse the commands that still wait, and return how the run ended."""
        self.step_loop.conclude()  # a callback of the script may have ended the training
        return self._session.conclude()


def begin_session(watched: Watched) -> HfSession:
    """Build the session of a trainer that has its optimizer and schedule; every rank calls this.

    Raises:
        Unwatchable: rank 0 could not open a run folder.
    """
    trainer, config, event_log = watched.trainer, watched.config, watched.event_log
    place = watched.place
    agreement = agreement_of(place.rank, place.world_size)
    run = broadcast_run(watched.script_run, agreement)
    memory = HfMemory(trainer, event_log.position)
    memory.stepped()
    state = ForeignState(_parts(trainer), memory, watched.tape, event_log.position)
    controlled = HfControlledTrainer(
        trainer,
        event_log.position,
        state,
        watched.tape,
        watched.capabilities.refused,
        agreement,
    )
    session, monitor, _ = control_trainer(
        config,
        run,
        event_log,
        agreement,
        place,
        controlled,
        trainer.model,
        tokenizer_of(trainer),
    )
    if watched.capabilities.exact:
        session.step_loop.observe_late()
    _patch(watched, session.step_loop)
    _record_start(watched, agreement, state)
    return HfSession(
        session,
        controlled,
        memory,
        event_log,
        monitor,
        watched.tape,
        NewestCompletion(trainer),
        alone=agreement.alone,
    )


def _parts(trainer: Any) -> Parts:
    return Parts(
        model=trainer.model,
        optimizer=trainer.optimizer,
        schedules=[trainer.lr_scheduler],
        scaler=trainer.accelerator.scaler,
    )


def _patch(watched: Watched, step_loop: StepLoop) -> None:
    """Make optimizer and backward pass of the trainer ask the step hooks before they run."""
    trainer, undo = watched.trainer, watched.undo
    undo.remember(trainer.optimizer, "step")
    undo.remember(trainer.accelerator, "backward")
    connect_updates(
        step_loop,
        ShieldedUpdates(step_loop, watched.shield),
        trainer.optimizer,
        trainer.accelerator,
        _gate(watched),
        alone=watched.place.world_size == 1,
    )


def _gate(watched: Watched) -> FinalGate | None:
    """Return the gate by which the device refuses updates; None if the host decides on each.

    It knows the verdict of a step late, so the step after it must be one that can be dropped.
    Gradients are kept for the report of a refused update, unless they are large: they would take
    memory that the script may need. The report then has the gradients of the next update.
    """
    trainer, device = watched.trainer, watched.place.device
    own = bare(trainer.optimizer)
    if not (in_its_own_time(device) and takes_verdicts(own) and watched.capabilities.exact):
        return None
    if trainer.accelerator.scaler is not None:
        return None
    return FinalGate(own, keeps_gradients=gradient_bytes(own) <= share_of_memory(device))


def in_its_own_time(device: torch.device) -> bool:
    """Whether the device computes asynchronously to the host."""
    return device.type == "cuda"


def share_of_memory(device: torch.device) -> float:
    """Return the bytes of a device that gradients kept for a report may take."""
    return _KEPT_SHARE * torch.cuda.get_device_properties(device).total_memory


def gradient_bytes(optimizer: Any) -> int:
    """Return the bytes that the gradients of an optimizer take."""
    groups = optimizer.param_groups
    return sum(one.nbytes for group in groups for one in group["params"] if one.requires_grad)


def _record_start(watched: Watched, agreement: Agreement, state: ForeignState) -> None:
    trainer, kind = watched.trainer, type(watched.trainer)
    facts = {
        "trainer": f"{kind.__module__}.{kind.__qualname__}",
        "checkpoints": watched.plan.fact,
        "batches kept": watched.tape.limit_text,
    }
    record_start(
        watched.script_run,
        agreement,
        watched.place,
        trainer.model,
        state,
        facts,
        watched.capabilities.refused,
        total_steps=int(trainer.state.max_steps),
        start_step=int(trainer.state.global_step),
    )
