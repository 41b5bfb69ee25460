"""The run of a loop whose objects are known: model, optimizer, schedules and batches.

What makes the batches and where the boundary between two steps lies is known to derived classes.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from shlex import quote
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from ...config.schema import RunConfig, TrainConfig
from ...protocol.commands import Command
from ...protocol.states import RunState
from ...train.checkpoint.optimizer_state import bare
from ...train.controlled_session import ControlledSession
from ...train.distributed.place import RankPlace
from ...train.distributed.rank_agreement import agreement_of
from ...train.loop.step_loop import StepLoop
from ...train.monitoring.monitor import TrainingMonitor
from ..batch_tape import BatchTape
from ..checkpoint_plan import CheckpointPlan
from ..foreign_session import broadcast_run, control_trainer, record_start
from ..foreign_state import ForeignState, Parts, group_lrs
from ..script_config import LEAST_LR, command_line, model_name, script_config, script_path
from ..script_run import RunEndByScript, ScriptRun, abandon, run_end_after, say
from ..shield import Shield
from ..watch_options import WatchOptions
from .loop_trainer import LoopMemory, LoopTrainer

NO_LOSS = (
    "the script reports no loss, so the loss has no curve and only the gradient is checked; call "
    "run.log(loss=loss) before optimizer.step()"
)
RETURNED = (
    "the loss is the one that the model returns with its output, because the script reports none; "
    "if it trains on another one, call run.log(loss=loss) before optimizer.step()"
)


@dataclass(frozen=True, kw_only=True)
class LoopParts:
    """What a loop trains with."""

    model: nn.Module
    optimizer: Any
    schedules: list[Any]
    """Learning rate schedules; each has `state_dict` and `load_state_dict`."""
    scaler: Any = None
    """The loss scaler of fp16 training; None in other precisions."""
    clip: float = 0.0
    """The gradient clip that the loop asks for; 0 if it is off or the loop clips by itself."""
    kind: str = "plain loop"
    """What the run calls the trainer."""
    known: Mapping[str, int] = field(default_factory=dict)
    """Further fields of the start of the run."""


class LoopRun:
    """A loop under control; one step after another is begun, checked and ended."""

    def __init__(
        self,
        parts: LoopParts,
        plan: CheckpointPlan,
        refused: Mapping[type[Command], str],
        options: WatchOptions,
        *,
        keeps_batches: bool,
    ) -> None:
        self._parts = parts
        self._plan = plan
        self._refused = dict(refused)
        self._options = options
        self._shield = Shield(self._abandon)
        self._config = _config(parts, plan, options)
        self._place = _place(parts.model)
        self._script_run = self._open()
        self._event_log = (
            self._script_run.event_log if self._script_run else options.make_event_log(None, None)
        )
        self._tape = BatchTape(
            options.accumulate,
            limit_bytes=options.tape_mib * 2**20,
            keeps=keeps_batches,
            log=self._event_log.log,
        )
        self._memory = LoopMemory(parts.optimizer, self._event_log.position)
        self._trainer: LoopTrainer | None = None
        self._session: ControlledSession | None = None
        self._monitor: TrainingMonitor | None = None
        self._in_step = False
        self._losses: list[Tensor] = []
        self._returned: list[Tensor] = []
        """The losses in the outputs of the model since the last update."""
        self._told: set[str] = set()
        self._hooks: list[Any] = []
        """Hooks of model and optimizer, which are removed at the end."""
        self._record_start: Callable[[], None] | None = None
        """Records the start with all that is known; None until the control is built."""
        self.stopped = False
        """Whether the run was stopped; no further step is begun."""
        atexit.register(self._at_exit)

    @property
    def step(self) -> int:
        """Number of updates so far; a rollback sets it back."""
        return self._event_log.position.step

    def _open(self) -> ScriptRun | None:
        if self._place.rank:
            return None
        source, kind = f"# {command_line()}\n", self._parts.kind
        script_run = ScriptRun(self._config, source, kind, self._options.make_event_log)
        say(f"run {script_run.run.id} · attach: fttui attach {quote(str(script_run.run.path))}")
        return script_run

    @property
    def _step_loop(self) -> StepLoop | None:
        return self._session.step_loop if self._session else None

    def log(self, loss: Tensor | float | None = None, **figures: float) -> None:
        """Add the loss of a batch, and other figures, to the step; call it before the update.

        Args:
            loss: loss of this batch; the loss of a step is the mean over its batches.
            figures: further numbers by name, which become curves of their own.
        """
        self._shield.call(lambda: self._log(loss, figures), None)

    def _log(self, loss: Tensor | float | None, figures: dict[str, float]) -> None:
        if loss is not None:
            self._losses.append(torch.as_tensor(loss).detach().float().reshape(()))
        if self._step_loop is not None:
            known = self._step_loop.tally.figures
            known |= {name: known.get(name, 0.0) + float(value) for name, value in figures.items()}

    def _begin(self, step: int = 0) -> ControlledSession:
        """Build the control around the loop, which has made `step` steps before.

        Raises:
            Unwatchable: rank 0 could not open a run folder.
        """
        agreement = agreement_of(self._place.rank, self._place.world_size)
        run = broadcast_run(self._script_run, agreement)
        position, parts = self._event_log.position, self._parts
        self._memory.move_to(step)
        changed = Parts(
            model=parts.model,
            optimizer=parts.optimizer,
            schedules=parts.schedules,
            scaler=parts.scaler,
        )
        state = ForeignState(changed, self._memory, self._tape, position)
        trainer = LoopTrainer(parts.optimizer, position, state, self._tape, self._refused)
        place, log = self._place, self._event_log
        controlled = control_trainer(
            self._config, run, log, agreement, place, trainer, parts.model, None
        )
        self._monitor = controlled.monitor
        facts = {"checkpoints": self._plan.fact, "batches kept": self._tape.limit_text}
        self._record_start = lambda: record_start(
            self._script_run,
            agreement,
            place,
            parts.model,
            state,
            facts,
            self._refused,
            **parts.known,
        )
        self._record_start()
        self._trainer = trainer
        return controlled.session

    def _begin_step(self) -> bool:
        """Handle the boundary between two steps; False if the run ends here."""
        assert self._session is not None, "the session begins before the first step"
        self._memory.move_to(self.step)
        self._in_step = self._session.step_loop.begin_step()
        return self._in_step

    def _judge(self) -> bool:
        """Scale the learning rate, clip and check the update; return whether it may be made."""
        step_loop = self._step_loop
        assert step_loop is not None, "a step begins with a batch"
        self._memory.move_to(self.step)
        losses = self._losses or self._returned
        step_loop.tally.without_loss = not losses
        if not self._losses:
            self._tell_once("info" if losses else "warning", RETURNED if losses else NO_LOSS)
        if losses:
            device = losses[0].device
            step_loop.record_loss(torch.stack([one.to(device) for one in losses]).mean())
        self._losses, self._returned = [], []
        step_loop.tally.figures["batches_kept_mib"] = self._tape.size_bytes / 2**20
        step_loop.check_update(self._clip)
        return step_loop.may_update()

    def _tell_once(self, level: str, text: str) -> None:
        """Log where the loss of the run comes from; nothing if that was logged before."""
        if text not in self._told:
            self._told.add(text)
            self._event_log.log(level, text)

    def _clip(self, limit: float) -> Tensor:
        return clip_grad_norm_([p for p in self._parameters() if p.grad is not None], limit)

    def _parameters(self) -> Iterator[nn.Parameter]:
        for group in bare(self._parts.optimizer).param_groups:
            yield from group["params"]

    def _refuse_update(self) -> None:
        """Leave the optimizer nothing to apply, so that it changes neither weights nor state."""
        for parameter in self._parameters():
            parameter.grad = None

    def _restore_lr(self) -> None:
        if self._trainer is not None:
            self._trainer.restore_lr()

    def _end_step(self, *, updated: bool = True, last: bool = False) -> None:
        step_loop = self._step_loop
        assert step_loop is not None, "a step begins with a batch"
        if updated:
            step_loop.optimizer_stepped()
        self._memory.move_to(self.step + 1)
        step_loop.end_step(last=last)

    def end(self, error: str = "") -> None:
        """End the run; a second end changes nothing. At the exit of the process it ends by itself.

        Args:
            error: why the training failed; empty if it did not.
        """
        self._end(RunEndByScript(RunState.FAILED, error) if error else None)

    def fail(self, ended: RunEndByScript) -> None:
        """End the run with an error of the script."""
        self._end(ended)

    def _end(self, ended: RunEndByScript | None) -> None:
        """End the run; `ended` says how the script ended it, None that the loop has finished."""
        for hook in self._hooks:
            hook.remove()
        atexit.unregister(self._at_exit)
        session, run = self._session, self._script_run
        outcome = None
        if session is not None and ended is None:
            outcome = self._shield.call(session.conclude, None)
        if run is None:
            return
        state, error = ended or (outcome.state if outcome else RunState.FINISHED, "")
        run.end(
            state,
            error=error,
            checkpoint=outcome.checkpoint if outcome else None,
            reason=outcome.reason if outcome else "",
            usage=outcome.usage if outcome else None,
        )

    def _at_exit(self) -> None:
        failed = getattr(sys, "last_value", None)
        self._end(run_end_after(failed) if failed else None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._end(run_end_after(error) if error else None)

    def _abandon(self, error: Exception) -> None:
        """Stop watching after an error of our own; the loop continues."""
        self._restore_lr()
        abandon(self._script_run, error)


def _place(model: nn.Module) -> RankPlace:
    device = next((one.device for one in model.parameters()), torch.device("cpu"))
    joined = dist.is_available() and dist.is_initialized()
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if joined else (0, 1)
    return RankPlace(rank, ranks, device)


def _config(parts: LoopParts, plan: CheckpointPlan, options: WatchOptions) -> RunConfig:
    train = TrainConfig(
        steps=options.steps,
        epochs=None if options.steps else 1.0,
        lr=max(*group_lrs(parts.optimizer), LEAST_LR),
        accumulate=options.accumulate,
        clip=parts.clip,
    )
    name = options.name or script_path().stem or "script"
    scaled = parts.scaler is not None
    model = model_name(parts.model)
    config = script_config(model, train, name, plan, options.keep, scaled=scaled)
    return options.with_trackers(config)
