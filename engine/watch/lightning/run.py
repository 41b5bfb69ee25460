"""The run of a Lightning trainer, through the hooks of a callback.

| hook | step hook | possible effect |
|---|---|---|
| `on_train_batch_start` | `begin_step`, `fetch` | run commands, at the first batch |
| `on_before_backward` | `record_loss` | the loss of the step |
| `on_before_optimizer_step` | `check_update`, `may_update` | set rate and clip, refuse the update |
| step hook of the optimizer | | restore the scheduled learning rate |
| `on_train_batch_end` | `end_step`, `begin_step` | journal the step, run commands, end the run |

Lightning keeps its position in the data and in its loops to itself, so nothing goes back; and a
checkpoint of fttui would serve nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

from ...protocol.commands import (
    AverageCheckpoints,
    Chat,
    Command,
    Evaluate,
    FindCulprits,
    GenerateSample,
    ProfileSteps,
    Quarantine,
    Recover,
    Rollback,
    SaveCheckpoint,
    SetClip,
    SetMix,
    SkipBatches,
)
from ...protocol.events import EvalFinished
from ...train.checkpoint.optimizer_state import bare
from ..checkpoint_plan import no_checkpoints
from ..plain.loop_run import LoopParts, LoopRun
from ..refusals import DATA_OF_SCRIPT, MIX_OF_SCRIPT, OF_RECIPE, OWN_CHECKPOINTS, Unwatchable
from ..watch_options import WatchOptions

_POSITION = "Lightning does not expose its position in the data, so fttui cannot roll it back"
REFUSED: dict[type[Command], str] = {
    ProfileSteps: "a watched script cannot be profiled",
    Quarantine: DATA_OF_SCRIPT,
    SetMix: MIX_OF_SCRIPT,
    **OF_RECIPE,
    FindCulprits: DATA_OF_SCRIPT,
    AverageCheckpoints: OWN_CHECKPOINTS,
    Evaluate: "Lightning validates by itself (val_check_interval)",
    GenerateSample: "the module has no tokenizer that fttui knows",
    Chat: "the module has no tokenizer that fttui knows",
    SaveCheckpoint: "Lightning saves with its ModelCheckpoint",
    Rollback: _POSITION,
    Recover: _POSITION,
    SkipBatches: _POSITION,
}
"""Commands that a Lightning trainer cannot obey, with the reason."""
_PLAN = no_checkpoints(REFUSED[SaveCheckpoint])
_STRATEGIES = ("SingleDeviceStrategy", "DDPStrategy")
"""Strategies whose ranks hold the whole model."""


class _Handed(Iterator[Any]):
    """An iterator over the batch that Lightning has fetched."""

    def __init__(self) -> None:
        self._waiting: list[Any] = []

    def put_next(self, batch: Any) -> None:
        """Set the batch that is served next."""
        self._waiting.append(batch)

    def __next__(self) -> Any:
        if not self._waiting:
            raise StopIteration
        return self._waiting.pop()


class LightningRun(LoopRun):
    """One `fit()` of a Lightning trainer under control."""

    def __init__(self, trainer: Any, module: Any, options: WatchOptions) -> None:
        require_watchable(trainer, module)
        self._lightning = trainer
        self._clip_before = trainer.gradient_clip_val
        refused = dict(REFUSED)
        if str(trainer.gradient_clip_algorithm or "norm").rpartition(".")[2].lower() != "norm":
            refused[SetClip] = "gradient_clip_algorithm clips by value, and fttui by norm"
        super().__init__(_parts(trainer, module), _PLAN, refused, options, keeps_batches=False)
        self._batches = _Handed()
        self._epoch = -1
        self._judged = self._updated = False
        """Whether the step has been checked, and its update made, since it was begun."""
        own = bare(self._parts.optimizer)
        self._hooks.append(own.register_step_post_hook(self._after_update))
        self._session = self._begin(int(trainer.global_step))
        scaler = self._parts.scaler
        scale = None if scaler is None else lambda: float(scaler.get_scale())
        self._session.step_loop.begin_training(None, scale)

    def batch_started(self, batch: Any) -> None:
        """Begin a step with its first batch, and count the batch."""
        self._shield.call(lambda: self._start(batch), None)

    def _start(self, batch: Any) -> None:
        if not self._in_step and not self._begin_step_or_stop():
            return
        if self._lightning.current_epoch != self._epoch:
            self._epoch = int(self._lightning.current_epoch)
            self._batches = _Handed()
            size = self._lightning.num_training_batches
            self._tape.open(self._epoch, self._batches, int(size) if math.isfinite(size) else 0)
        self._batches.put_next(batch)
        self._tape.load(1)
        assert self._step_loop is not None, "the session begins with the run"
        self._step_loop.fetch(1)

    def _begin_step_or_stop(self) -> bool:
        """Handle the boundary before a step; False if the run is stopped, which ends the fit."""
        self._judged = self._updated = False
        if not self.stopped and not self._begin_step():
            self.stopped = True
            self._lightning.should_stop = True
        return not self.stopped

    def backward_starts(self, loss: Tensor) -> None:
        """Record the loss of a batch, undoing Lightning's division by the batches of a step."""
        self.log(loss=loss.detach() * self._options.accumulate)

    def update_comes(self) -> None:
        """Check the update whose gradients are ready; remove the gradients of a refused one."""
        if not self._in_step:
            return
        if not self._shield.call(self._judge_with_figures, True):
            self._refuse_update()

    def _judge_with_figures(self) -> bool:
        if self._place.world_size == 1:
            figures = _figures(self._lightning.logged_metrics)
            figures.pop("loss", None)  # every step has it anyway
            self._log(None, figures)
        self._judged = True
        return self._judge()

    def _clip(self, limit: float) -> Tensor:
        """Let Lightning clip to a limit, and return the gradient norm before clipping."""
        self._lightning.gradient_clip_val = limit if math.isfinite(limit) else None
        grads = [p.grad for p in self._parameters() if p.grad is not None]
        return get_total_norm(grads)

    def _after_update(self, *_: Any) -> None:
        self._restore_lr()
        self._updated = True

    def batch_ended(self) -> None:
        """Journal a step whose last batch this was, and handle the boundary after it."""
        if self._in_step and self._judged:
            self._in_step = False
            self._shield.call(self._finish, None)

    def _finish(self) -> None:
        last = self._is_last()
        self._restore_lr()
        self._end_step(updated=self._updated, last=last)
        if not last:
            self._begin_step_or_stop()

    def _is_last(self) -> bool:
        """Whether Lightning ends after this step, so that no boundary follows."""
        trainer = self._lightning
        if 0 <= trainer.max_steps <= trainer.global_step:
            return True
        epochs = trainer.max_epochs
        ends = epochs is not None and 0 <= epochs <= trainer.current_epoch + 1
        return bool(ends and trainer.is_last_batch)

    def validated(self) -> None:
        """Record the figures of a validation, but not those of Lightning's sanity check."""
        if not self._lightning.sanity_checking:
            self._shield.call(self._record_validation, None)

    def _record_validation(self) -> None:
        results = getattr(self._lightning, "_results", None)  # those of this validation alone
        found = self._lightning.callback_metrics
        if results is not None:
            found = results.metrics(on_step=False)["callback"]
        metrics = {
            name.removeprefix("val_").removeprefix("val/"): value
            for name, value in _figures(found).items()
        }
        self._event_log.record(EvalFinished(metrics=metrics, seconds=0.0))
        if "loss" in metrics and self._monitor is not None:
            self._monitor.evaluated(metrics)

    def close(self) -> None:
        """Restore what was changed in the trainer."""
        self._restore_lr()
        self._lightning.gradient_clip_val = self._clip_before


def require_watchable(trainer: Any, module: Any) -> None:
    """Check that fttui can watch the training of a module.

    Raises:
        Unwatchable: it cannot.
    """
    strategy = type(trainer.strategy).__name__
    if not module.automatic_optimization:
        raise Unwatchable("the module optimizes by itself (automatic_optimization=False)")
    if len(trainer.optimizers) != 1:
        raise Unwatchable(f"the module has {len(trainer.optimizers)} optimizers; expected 1")
    if strategy not in _STRATEGIES:
        raise Unwatchable(f"{strategy} shards or replaces the update; expected one device or DDP")


def _parts(trainer: Any, module: Any) -> LoopParts:
    steps = trainer.estimated_stepping_batches
    return LoopParts(
        model=module,
        optimizer=trainer.optimizers[0],
        schedules=[config.scheduler for config in trainer.lr_scheduler_configs],
        scaler=getattr(trainer.precision_plugin, "scaler", None),
        clip=float(trainer.gradient_clip_val or 0.0),
        kind="Lightning",
        known={
            "total_steps": int(steps) if math.isfinite(steps) else 0,
            "start_step": int(trainer.global_step),
        },
    )


def _figures(logged: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers that a module has logged, without the epoch, which every step has."""
    return {
        name: float(value)
        for name, value in logged.items()
        if name != "epoch"
        and (isinstance(value, int | float) or (torch.is_tensor(value) and value.numel() == 1))
    }
