"""Connects the Hugging Face training loop to the step loop: a mixin of its trainer, and a callback.

The hooks of one optimizer step, in order:

| Hugging Face hook | step hook | possible effect |
|---|---|---|
| `TrainerCallback.on_train_begin` | `StepLoop.begin_training` | return to a checkpoint |
| `Trainer.get_batch_samples` | `begin_step`, `fetch` | run commands; end the run |
| `Trainer.training_step`, at its start | `may_continue` | drop the step |
| `Accelerator.backward` | `may_backward` | drop the step; conclude the step before |
| `Trainer.training_step`, at its end | `record_loss` | the loss of the step |
| `Trainer._clip_grad_norm` | `check_update` | pass again (SAM, Sophia), clip, check the update |
| `optimizer.step` | `may_update`, `gated` | refuse the update |
| `TrainerCallback.on_optimizer_step` | `optimizer_stepped` | update the moving average |
| `TrainerCallback.on_step_end` | `end_step` | journal the step, or undo it |

`training_step` and `backward` are called once per micro-batch. `tests/integration/test_hook_order`
asserts this order. The Hugging Face loop keeps forward, backward, accumulation, DDP, precision and
the optimizer. The data loader that it sees has no length, so its epochs do not matter: steps and
data positions belong to fttui, which is what makes an in-process rollback possible.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ...config.schema import RunConfig, TrainConfig
from ...core.profile import MICRO_BATCH
from ...core.schedules import Factor
from ...losses.cross_entropy import IGNORED
from ...losses.gather import sums_over_ranks
from ...losses.weights import weight_of_targets
from ...model.host_embedding import send_to_device
from ..cuda_graphs.eligibility import fast_path
from ..cuda_graphs.strategy import GraphStrategy
from ..forward import Forward
from ..patches import keep_sharded, zero_grad_of_trained
from ..position import Position
from ..profiler_spans import span
from .clipping import clip_gradients
from .optimizers import OwnOptimizer, lr_ratio
from .passes.choose import extra_pass_of
from .step_loop import StepLoop
from .update_gate import gate_of
from .update_seams import connect_updates

if TYPE_CHECKING:
    from ..distributed.sharding import ShardedModel  # slow to import


class SteppedTrainer(OwnOptimizer):
    """Mixin in front of `transformers.Trainer` that calls the step hooks; start it with `run`."""

    step_loop: StepLoop
    generates = True
    """Whether the model generates text."""
    forward: Forward
    """The strategy by which micro-batches pass through the model."""
    no_items = False
    """Whether the step has no labelled token on any rank, or only tokens of weight 0. Several GPUs
    learn it for data with weights alone: other records always have a target."""
    sharded: ShardedModel | None = None
    """The parts of the model on this rank; None if each rank has the whole model."""

    def __init__(
        self,
        *,
        recipe: TrainConfig,
        position: Position,
        lr_factor: Factor | None = None,
        weighted: bool = False,
        **kwargs: Any,
    ) -> None:
        self.weighted = weighted
        """Whether records or tokens have weights, so that means are over these."""
        self.recipe = recipe
        self.position = position
        self.lr_factor = lr_factor
        self.extra_pass = extra_pass_of(recipe, self)
        super().__init__(**kwargs)

    def choose_forward(
        self, config: RunConfig, pad_id: int, log: Callable[[str, str], None]
    ) -> None:
        """Set `forward` to CUDA graphs or to the model's own code.

        Raises:
            ConfigError: `train.fast` is on, but the run cannot use CUDA graphs.
        """
        graphs, fact = fast_path(config, self, pad_id, log)
        self.forward = self.eager_forward(fact) if graphs is None else GraphStrategy(graphs, fact)

    def shard(self, trained: Mapping[str, Tensor]) -> None:
        """Split the model over all ranks, which call this together.

        Args:
            trained: the trained weights by the names under which they are saved.

        Raises:
            ModelError: a weight cannot be split.
        """
        from ..distributed.sharding import ShardedModel  # deferred: it is slow to import

        trainer: Any = self
        ranks = self.recipe.sharing_ranks
        self.sharded = ShardedModel(trainer.model, trainer.args.device, trained, ranks)

    def eager_forward(self, fact: str) -> Forward:
        """Return the forward strategy without CUDA graphs; each task has its own."""
        raise NotImplementedError

    def run(self, step_loop: StepLoop, begin: Callable[[], None]) -> None:
        """Train to the end of the run.

        Args:
            step_loop: the step hooks to call.
            begin: called once, after optimizer and schedule have been created.
        """
        trainer: Any = self
        self.step_loop = step_loop
        trainer.add_callback(StepCallback(step_loop, self, begin))
        trainer.train()

    @property
    def own_parameters(self) -> dict[str, torch.nn.Parameter]:
        """Trained parameters outside of the model; part of the exact state."""
        return {}

    @property
    def kept_tensors(self) -> Sequence[Tensor]:
        """Tensors beside model and optimizer that the run keeps on the device."""
        return ()

    @property
    def scaler(self) -> Any:
        """The loss scaler of fp16 training; None in other precisions."""
        return self.accelerator.scaler  # type: ignore[attr-defined]  # of the trainer

    def report_position(self) -> None:
        """Copy the step and the learning rate of the schedule to the shared position."""
        trainer: Any = self
        of_first, ratio = trainer.lr_scheduler.get_last_lr()[0], lr_ratio(trainer.optimizer)
        lr = of_first if ratio == 1 else of_first / ratio
        self.position.move_to(int(trainer.state.global_step), float(lr))

    def return_to_step(self, step: int) -> None:
        """Set the number of finished steps; called after the schedule has been restored."""
        trainer: Any = self
        trainer.state.global_step = step
        self.report_position()

    def _prepare_for_training(self, *arguments: Any, **named: Any) -> Any:
        """Prepare model and optimizer, and make `zero_grad` visit only trained parameters."""
        sharded, accelerator = self.sharded, self.accelerator  # type: ignore[attr-defined]  # of the trainer
        self.forward.prepare(accelerator)
        if sharded is not None:
            keep_sharded(accelerator)
        model, loader = super()._prepare_for_training(*arguments, **named)  # type: ignore[misc]  # of the trainer
        zero_grad_of_trained(model, None if sharded is None else sharded.trained)
        return model, loader

    def _move_model_to_device(self, model: Any, device: torch.device) -> None:
        """Move the model to the device, unless it is split first and its parts are moved then."""
        if not self.recipe.shards:
            super()._move_model_to_device(model, device)  # type: ignore[misc]  # of the trainer

    def get_train_dataloader(self) -> Any:
        """Return the endless batch source, which is read by position."""
        return self.step_loop.source

    def get_batch_samples(
        self, epoch_iterator: Any, num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]:
        """Handle the boundary before a step; return its batches and the number of labelled tokens.

        If the run ends here, the trainer's stop flag is set, and it gets no batches and None.
        """
        if not self.step_loop.begin_step():
            self.control.should_training_stop = True  # type: ignore[attr-defined]  # of the trainer
            return [], None
        batches = self.step_loop.fetch(num_batches)
        items = self._get_num_items_in_batch(batches, device)
        self.extra_pass.begin(batches, items)
        self.prepare_step(batches)
        if self.nothing_to_learn(batches):
            self.step_loop.tally.mark_without_targets()
        return batches, items

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> Any:
        """Return the number of labelled tokens of the step on all ranks; None without labels.

        It is the sum of their weights if there are any.
        """
        self.no_items = False
        labels = [batch["labels"] for batch in batch_samples if "labels" in batch]
        if not labels:
            return None
        if self.weighted:
            own = sum(weight_of_targets(one) for one in batch_samples)
            weight = sums_over_ranks([own])[0]
            self.no_items = weight == 0
            return torch.tensor(weight, dtype=torch.float32, device=device)
        if self._loss_shifts_labels:  # type: ignore[attr-defined]  # of the trainer
            labels = [one[..., 1:] for one in labels]
        total = torch.tensor(sum(int(one.ne(IGNORED).sum()) for one in labels))
        several = self.accelerator.num_processes > 1  # type: ignore[attr-defined]  # of the trainer
        self.no_items = not several and not total
        if device.type == "cuda":
            total = total.pin_memory().to(device, non_blocking=True)
        if several:
            dist.all_reduce(total)
            self.no_items = device.type != "cuda" and not total
        return total

    def head_kept(self) -> AbstractContextManager[None]:
        """Return a context in which a split output head stays whole once a rank has used it.

        So every rank gathers it as often as the others, whatever its number of targets.
        """
        return nullcontext() if self.sharded is None else self.sharded.ends.kept()

    def nothing_to_learn(self, batches: list[Any]) -> bool:
        """Return whether the step has no target on any rank, or only targets of weight 0.

        Called after `prepare_step`; the trainers whose loss is not next-token alone override it.
        """
        return self.no_items

    def prepare_step(self, batches: list[Any]) -> None:
        """Compute the values that the loss over a whole step needs before its first micro-batch.

        Here nothing is done; the trainers of the tasks override it.
        """

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Run one micro-batch forward and backward and return its loss.

        If the step is being dropped, nothing runs and the loss is 0.
        """
        if not self.step_loop.may_continue():
            return torch.zeros((), device=self.args.device)  # type: ignore[attr-defined]  # of the trainer
        with self.step_loop.tally.time("compute"), span(MICRO_BATCH):
            step = self.forward.training_step(self, super().training_step)  # type: ignore[misc]  # of the trainer
            loss: Tensor = step(model, inputs, num_items_in_batch)
            self.step_loop.record_loss(loss)
        return loss

    def _prepare_input(self, data: Any) -> Any:
        """Send a tensor to the device without waiting for the work queued there."""
        device = self.args.device  # type: ignore[attr-defined]  # of the trainer
        if isinstance(data, Tensor) and device.type == "cuda" and data.device.type == "cpu":
            return send_to_device(data, device)
        return super()._prepare_input(data)  # type: ignore[misc]  # of the trainer

    def _clip_grad_norm(self, model: Any) -> Tensor:
        """Apply settings, clip and check the update, between backward pass and optimizer step.

        If the optimizer needs another pass over the micro-batches, it is made first. Return the
        gradient norm before clipping.
        """

        def clip(limit: float) -> Tensor:
            if self.sharded is not None:
                return self.sharded.clip(limit)
            self.forward.average_gradients()
            trained = [p for p in model.parameters() if p.requires_grad]
            clip_norm = partial(self.accelerator.clip_grad_norm_, trained)  # type: ignore[attr-defined]  # of the trainer
            return clip_gradients(trained, self.recipe, limit, clip_norm)

        self.average_own_gradients()
        self.extra_pass.run(model)
        with span("judge"):
            return self.step_loop.check_update(clip)

    def average_own_gradients(self) -> None:
        """Average the gradients of parameters outside of the model over all ranks.

        Called after the last backward pass of a step, and of an additional pass.
        """

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        return grad_norm

    def floating_point_ops(self, inputs: Any) -> int:
        """Return 0, because counting would visit all parameters at every micro-batch."""
        return 0


class StepCallback(TrainerCallback):  # type: ignore[misc]  # transformers is untyped
    """Calls the step hooks at the start of training, after an update and at the end of a step."""

    def __init__(
        self, step_loop: StepLoop, trainer: SteppedTrainer, begin: Callable[[], None]
    ) -> None:
        self._step_loop = step_loop
        self._trainer = trainer
        self._begin = begin

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Patch the optimizer and the accelerator's backward pass, and begin the session."""
        step_loop, optimizer, trainer = self._step_loop, kwargs["optimizer"], self._trainer
        trainer.report_position()
        # Without graphs, gradients do not outlive the step, so an update cannot be held back.
        gate = gate_of(optimizer) if trainer.forward.uses_graphs else None
        accelerator = trainer.accelerator  # type: ignore[attr-defined]  # of the trainer
        connect_updates(step_loop, step_loop, optimizer, accelerator, gate)
        self._begin()

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Report to the step loop that the optimizer ran, unless the loss scaler skipped it."""
        if not kwargs["optimizer"].step_was_skipped:
            self._step_loop.optimizer_stepped()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Journal the step; a dropped step is undone and does not count.

        Training continues unless this was the last planned step and it counted.
        """
        self._trainer.report_position()
        planned = state.global_step < args.max_steps
        counted = self._step_loop.end_step(last=not planned)
        if not counted or planned:
            control.should_training_stop = False
