"""A plain PyTorch loop under control, through the hooks of its optimizer and its batches.

    run = fttui.watch(model=model, optimizer=optimizer, scheduler=scheduler)
    for epoch in range(3):
        for batch in run.batches(loader):
            loss = loss_of(model(batch))
            loss.backward()
            run.log(loss=loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()

The boundary between two steps is where the loop takes the first batch after an update.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable, Iterable, Iterator, Sized
from types import TracebackType
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from ...config.schema import RunConfig, TrainConfig
from ...protocol.commands import Recover, Rollback, SkipBatches
from ...protocol.states import RunState
from ...train.checkpoint.optimizer_state import bare
from ...train.controlled_session import ControlledSession
from ...train.distributed.place import RankPlace
from ...train.distributed.rank_agreement import agreement_of
from ...train.loop.step_loop import StepLoop
from ..batch_tape import BatchTape
from ..checkpoint_plan import CheckpointPlan
from ..foreign_session import broadcast_run, control_trainer, record_start
from ..foreign_state import ForeignState, Parts, group_lrs
from ..script_config import LEAST_LR, command_line, model_name, script_config, script_path
from ..script_run import ScriptEnd, ScriptRun, abandon, plan_for, say, script_end
from ..shield import Shield
from ..watch_options import WatchOptions
from .prepared_loader import Marked, PreparedLoader
from .trainer import PREFETCHING, REFUSED, LoopMemory, PlainTrainer

B = TypeVar("B")


class PlainRun:
    """The run of a plain loop; `batches` and `log` are all that the loop has to call."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Any,
        scheduler: Any,
        scaler: Any,
        options: WatchOptions,
    ) -> None:
        self._model = model
        self._scaler = scaler
        self._optimizer = optimizer
        self._schedules = [] if scheduler is None else [scheduler]
        self._shield = Shield(self._abandon)
        self._options = options
        self._plan = plan_for(model, options.keep, options.checkpoint_every)
        self._config = _config(model, optimizer, self._plan, options)
        self._place = _place(model)
        self._script_run = self._open()
        self._event_log = (
            self._script_run.event_log if self._script_run else options.make_event_log(None, None)
        )
        self._tape = BatchTape(
            options.accumulate, limit_bytes=options.tape_mib * 2**20, log=self._event_log.log
        )
        self._memory = LoopMemory(optimizer, self._event_log.position)
        self._trainer: PlainTrainer | None = None
        self._session: ControlledSession | None = None
        self._epoch = -1
        self._in_step = False
        self._losses: list[Tensor] = []
        self._told = False
        self.stopped = False
        """Whether the run was stopped; `batches` then yields nothing more."""
        self._refused = dict(REFUSED)
        self._record_start: Callable[[], None] = lambda: None
        self._forward_passed = False
        """Whether a forward pass for training has begun since the last update."""
        own = bare(optimizer)
        self._hooks = [
            own.register_step_pre_hook(self._before_update),
            own.register_step_post_hook(self._after_update),
            model.register_forward_pre_hook(self._note_forward),
        ]
        atexit.register(self._at_exit)

    @property
    def step(self) -> int:
        """Updates so far; after a rollback those up to the step that it led to."""
        return self._event_log.position.step

    def _open(self) -> ScriptRun | None:
        if self._place.rank:
            return None
        source = f"# {command_line()}\n"
        script_run = ScriptRun(self._config, source, "plain loop", self._options.make_event_log)
        say(f"run {script_run.run.id} · attach: fttui attach {script_run.run.path}")
        return script_run

    def batches(self, loader: Iterable[B]) -> Iterator[B]:
        """Yield the batches of one pass over a loader, and those again that a rollback returns to.

        Args:
            loader: makes the batches; anything that can be iterated over.
        """
        prepared = PreparedLoader(loader)
        try:
            for one in self._served(loader, prepared.marked()):
                yield prepared.serve(one)
        finally:
            prepared.close()

    def _served(self, loader: Iterable[Any], live: Iterator[Marked]) -> Iterator[Marked]:
        self._epoch += 1
        epoch, tape = self._epoch, self._tape
        tape.open(epoch, live, len(loader) if isinstance(loader, Sized) else 0)
        while not self.stopped:
            if not self._in_step and not self._shield.call(self._begin_step, True):
                self.stopped = True
                return
            if not self._shield.broken:
                tape.load(1)
            found = self._fetch()
            if found:
                yield found[0]
            elif tape.serving < epoch:
                tape.serving += 1
            elif self._shield.broken:
                for one in live:  # noqa: UP028 -- the loader is not closed with this generator
                    yield one
                return
            else:
                return

    def _fetch(self) -> list[Marked]:
        """Return the next batch, counted for the step; empty at the end of the pass."""
        hooks = self._step_loop
        served = self._shield.call(lambda: hooks.fetch(1), None) if hooks is not None else None
        if served is None:
            served = self._tape.fetch(1)
        return [one["batch"] for one in served]

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
            parts = {name: torch.tensor(float(value)) for name, value in figures.items()}
            self._step_loop.tally.add_parts(**parts)

    def _begin_step(self) -> bool:
        """Handle the boundary between two steps; False if the run ends here."""
        if self._session is None:
            self._session = self._begin()
        if self._forward_passed and self.step:
            self._refuse_going_back()
        step_loop = self._session.step_loop
        self._memory.move_to(self.step)
        goes_on = step_loop.begin_step()
        self._in_step = goes_on
        return goes_on

    def _refuse_going_back(self) -> None:
        """Refuse what would change weights between a forward pass and its backward pass."""
        if Rollback in self._refused:
            return
        self._refused.update(dict.fromkeys((Rollback, Recover, SkipBatches), PREFETCHING))
        self._record_start()
        self._event_log.log("warning", f"no rollback, recover or skip: {PREFETCHING}")

    def _begin(self) -> ControlledSession:
        agreement = agreement_of(self._place.rank, self._place.world_size)
        run = broadcast_run(self._script_run, agreement)
        position, optimizer = self._event_log.position, self._optimizer
        scaler = self._scaler or getattr(optimizer, "scaler", None)  # accelerate keeps it there
        parts = Parts(
            model=self._model, optimizer=optimizer, schedules=self._schedules, scaler=scaler
        )
        self._memory.move_to(0)
        state = ForeignState(parts, self._memory, self._tape, position)
        trainer = PlainTrainer(optimizer, position, state, self._tape, self._refused)
        place, log = self._place, self._event_log
        session = control_trainer(
            self._config, run, log, agreement, place, trainer, self._model, None
        ).session
        session.step_loop.begin_training(None, None)
        facts = {"checkpoints": self._plan.fact, "batches kept": self._tape.limit_text}
        self._record_start = lambda: record_start(
            self._script_run, agreement, place, self._model, state, facts, self._refused
        )
        self._record_start()
        self._trainer = trainer
        return session

    def _note_forward(self, model: nn.Module, *_: Any) -> None:
        self._forward_passed |= model.training and torch.is_grad_enabled()

    def _before_update(self, *_: Any) -> None:
        """Scale the learning rate, clip and judge the update; a refused one has no gradients."""
        if self._in_step and not self._shield.call(self._judge, True):
            for parameter in self._parameters():
                parameter.grad = None

    def _judge(self) -> bool:
        step_loop = self._step_loop
        assert step_loop is not None, "a step begins with a batch"
        self._memory.move_to(self.step)
        if not self._losses and not self._told:
            self._told = True
            self._event_log.log(
                "warning", "no loss is logged, so it is shown as 0; call run.log(loss=loss)"
            )
        if self._losses:
            step_loop.record_loss(torch.stack(self._losses).mean())
        self._losses = []
        kept = torch.tensor(self._tape.size_bytes / 2**20)
        step_loop.tally.add_parts(batches_kept_mib=kept)
        step_loop.check_update(self._clip)
        return step_loop.may_update()

    def _clip(self, limit: float) -> Tensor:
        return clip_grad_norm_([p for p in self._parameters() if p.grad is not None], limit)

    def _parameters(self) -> Iterator[nn.Parameter]:
        for group in bare(self._optimizer).param_groups:
            yield from group["params"]

    def _restore_lr(self) -> None:
        if self._trainer is not None:
            self._trainer.restore_lr()

    def _after_update(self, *_: Any) -> None:
        self._restore_lr()
        self._forward_passed = False
        if self._in_step and not self._shield.broken:
            self._in_step = False
            self._shield.call(self._end_step, None)
        else:
            self._memory.move_to(self.step + 1)

    def _end_step(self) -> None:
        step_loop = self._step_loop
        assert step_loop is not None, "a step begins with a batch"
        step_loop.optimizer_stepped()
        self._memory.move_to(self.step + 1)
        step_loop.end_step()

    def end(self, error: str = "") -> None:
        """End the run; a second end changes nothing. At the exit of the process it ends by itself.

        Args:
            error: why the training failed; empty if it did not.
        """
        self._end(ScriptEnd(RunState.FAILED, error) if error else None)

    def _end(self, ended: ScriptEnd | None) -> None:
        """End the run as the script has ended it; None if the loop has come to its end."""
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
        run.end(state, error=error, checkpoint=outcome.checkpoint if outcome else None)

    def _at_exit(self) -> None:
        failed = getattr(sys, "last_value", None)
        self._end(script_end(failed) if failed else None)

    def __enter__(self) -> PlainRun:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._end(script_end(error) if error else None)

    def _abandon(self, error: Exception) -> None:
        """Stop watching after an error of our own; the loop goes on."""
        self._restore_lr()
        abandon(self._script_run, error)


def watch_loop(
    model: nn.Module,
    optimizer: Any,
    scheduler: Any,
    options: WatchOptions,
    *,
    scaler: Any = None,
) -> PlainRun | None:
    """Return the run of a plain loop, or None, with a line that says why, if that fails."""
    try:
        return PlainRun(model, optimizer, scheduler, scaler, options)
    except Exception as error:  # noqa: BLE001 -- no error of ours may end the user's script
        say(f"this loop is not watched: {type(error).__name__}: {error}")
        return None


def _place(model: nn.Module) -> RankPlace:
    device = next((one.device for one in model.parameters()), torch.device("cpu"))
    joined = dist.is_available() and dist.is_initialized()
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if joined else (0, 1)
    return RankPlace(rank, ranks, device)


def _config(
    model: nn.Module, optimizer: Any, plan: CheckpointPlan, options: WatchOptions
) -> RunConfig:
    train = TrainConfig(
        steps=options.steps,
        epochs=None if options.steps else 1.0,
        lr=max(*group_lrs(optimizer), LEAST_LR),
        accumulate=options.accumulate,
        clip=0.0,
    )
    name = options.name or script_path().stem or "script"
    return script_config(model_name(model), train, name, plan, options.keep)
