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
from collections.abc import Iterable, Iterator, Sized
from types import TracebackType
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from msgspec.structs import replace
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from ...config.schema import RunConfig, TrainConfig
from ...protocol.states import RunState
from ...train.checkpoint.optimizer_state import bare
from ...train.controlled_session import ControlledSession
from ...train.distributed.place import RankPlace
from ...train.distributed.rank_agreement import agreement_of
from ...train.loop.step_loop import StepLoop
from ..batch_tape import BatchTape
from ..checkpoint_plan import CheckpointPlan
from ..foreign_session import control_trainer, run_of_all
from ..foreign_state import ForeignState, Parts, group_lrs
from ..lr_scale import LrScale
from ..refusals import refused_verbs
from ..script_config import LEAST_LR, command_line, model_name, script_config, script_path
from ..script_run import ScriptRun, plan_for, say
from ..shield import Shield
from ..watch_options import WatchOptions
from .trainer import REFUSED, LoopMemory, PlainTrainer

B = TypeVar("B")


class PlainRun:
    """The run of a plain loop; `batches` and `log` are all that the loop has to call."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Any,
        scheduler: Any,
        options: WatchOptions,
    ) -> None:
        self._model = model
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
        self._scale = LrScale(optimizer, self._event_log.position)
        self._session: ControlledSession | None = None
        self._epoch = -1
        self._in_step = False
        self._losses: list[Tensor] = []
        self._told = False
        self.stopped = False
        """Whether the run was stopped; `batches` then yields nothing more."""
        own = bare(optimizer)
        self._hooks = [
            own.register_step_pre_hook(self._before_update),
            own.register_step_post_hook(self._after_update),
        ]
        atexit.register(self._at_exit)

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
        self._epoch += 1
        size = len(loader) if isinstance(loader, Sized) else 1
        live = iter(loader)
        self._tape.open(self._epoch, live, size)
        epoch, tape = self._epoch, self._tape
        while not self.stopped:
            if not self._in_step and not self._shield.run(self._begin_step, True):
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
                for batch in live:  # noqa: UP028 -- the loader is not closed with this generator
                    yield batch
                return
            else:
                return

    def _fetch(self) -> list[Any]:
        """Return the next batch, counted for the step; empty at the end of the pass."""
        hooks = self._step_loop
        served = self._shield.run(lambda: hooks.fetch(1), None) if hooks is not None else None
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
        self._shield.run(lambda: self._log(loss, figures), None)

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
        step_loop = self._session.step_loop
        self._memory.move_to(self._event_log.position.step)
        goes_on = step_loop.begin_step()
        self._in_step = goes_on
        return goes_on

    def _begin(self) -> ControlledSession:
        agreement = agreement_of(self._place.rank, self._place.world_size)
        run = run_of_all(self._script_run, agreement)
        position, optimizer = self._event_log.position, self._optimizer
        parts = Parts(model=self._model, optimizer=optimizer, schedules=self._schedules)
        self._memory.move_to(0)
        state = ForeignState(parts, self._memory, self._tape, position)
        trainer = PlainTrainer(self._scale, position, state, self._tape)
        place, log = self._place, self._event_log
        session, _ = control_trainer(
            self._config, run, log, agreement, place, trainer, self._model, None
        )
        session.step_loop.begin_training(None, None)
        devices = [d.decode() for d in agreement.gather(place.description.encode())]
        if self._script_run is not None:
            self._announce(self._script_run, devices, state)
        return session

    def _announce(self, script_run: ScriptRun, devices: list[str], state: ForeignState) -> None:
        refused = refused_verbs(REFUSED)
        facts = {"checkpoints": self._plan.fact, "batches kept": self._tape.limit_text}
        facts |= {f"no {verb}": reason for verb, reason in refused.items()}
        started = replace(
            script_run.started,
            devices=devices,
            trainable_params=state.trained,
            total_params=sum(one.numel() for one in self._model.parameters()),
            facts=facts,
            refused=refused,
        )
        self._event_log.record(started)

    def _before_update(self, *_: Any) -> None:
        """Scale the learning rate, clip and judge the update; a refused one has no gradients."""
        if self._in_step and not self._shield.run(self._judge, True):
            for parameter in self._parameters():
                parameter.grad = None

    def _judge(self) -> bool:
        step_loop = self._step_loop
        assert step_loop is not None, "a step begins with a batch"
        self._memory.move_to(self._event_log.position.step)
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

    def _after_update(self, *_: Any) -> None:
        self._scale.put_back()
        if self._in_step:
            self._in_step = False
            self._shield.run(self._end_step, None)

    def _end_step(self) -> None:
        step_loop = self._step_loop
        assert step_loop is not None, "a step begins with a batch"
        step_loop.optimizer_stepped()
        self._memory.move_to(self._event_log.position.step + 1)
        step_loop.end_step()

    def end(self, error: str = "") -> None:
        """End the run; a second end changes nothing. At the exit of the process it ends by itself.

        Args:
            error: why the training failed; empty if it did not.
        """
        for hook in self._hooks:
            hook.remove()
        atexit.unregister(self._at_exit)
        session, run = self._session, self._script_run
        outcome = None
        if session is not None and not error:
            outcome = self._shield.run(session.conclude, None)
        if run is not None:
            state = outcome.state if outcome else RunState.FINISHED
            newest = outcome.checkpoint if outcome else None
            run.end(RunState.FAILED if error else state, error=error, checkpoint=newest)

    def _at_exit(self) -> None:
        failed = getattr(sys, "last_value", None)
        self.end(f"{type(failed).__name__}: {failed} (raised in the script)" if failed else "")

    def __enter__(self) -> PlainRun:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.end(f"{type(error).__name__}: {error} (raised in the script)" if error else "")

    def _abandon(self, error: Exception) -> None:
        """Stop watching after an error of our own; the loop goes on."""
        self._scale.put_back()
        text = f"an error of fttui itself ({type(error).__name__}: {error})"
        run = self._script_run
        file = f", details in {run.keep_error(error)}" if run else ""
        say(f"{text}; training goes on unwatched{file}")
        if run is not None:
            run.end(RunState.FAILED, error=f"{text}; the script trains on unwatched{file}")


def watch_loop(
    model: nn.Module,
    optimizer: Any,
    scheduler: Any,
    options: WatchOptions,
) -> PlainRun | None:
    """Return the run of a plain loop, or None, with a line that says why, if that fails."""
    try:
        return PlainRun(model, optimizer, scheduler, options)
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
