"""The hooks of the Hugging Face training loop and the calls to `StepLoop` that they make.

`SteppedTrainer` is a mixin that goes in front of a trainer class. The Hugging Face loop keeps
forward, backward, accumulation, DDP, precision and the optimizer; at its own hooks it asks the
`StepLoop` what may happen. The data loader that it sees has no length, so its epochs do not matter:
steps and data positions belong to fttui, which is what makes an in-process rollback possible.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ...core.profile import MICRO_BATCH
from ...losses.cross_entropy import IGNORED
from ...model.host_embedding import sent
from ..cuda_graphs.graph_forward import GraphForward
from ..monitoring.profiler_spans import span
from .optimizers import OwnOptimizer
from .step_loop import StepLoop
from .update_gate import gate_of


class SteppedTrainer(OwnOptimizer):
    """Mixin over `transformers.Trainer`; `step_loop` is set before `train()`."""

    step_loop: StepLoop
    fast: GraphForward | None = None
    """The way through the model in fast mode."""
    fast_fact = ""
    """What to say about it once."""

    def _prepare_for_training(self, *arguments: Any, **named: Any) -> Any:
        """What the loop trains with; the model knows what it has gradients of."""
        if self.fast:
            leave_ranks_to_themselves(self.accelerator)  # type: ignore[attr-defined]  # of the trainer
            self.fast.begin()
        model, loader = super()._prepare_for_training(*arguments, **named)  # type: ignore[misc]  # of the trainer
        forget_gradients_quickly(model)
        return model, loader

    def get_train_dataloader(self) -> Any:
        """Our endless, position-controlled source."""
        return self.step_loop.source

    def get_batch_samples(
        self, epoch_iterator: Any, num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]:
        """The boundary before a step: what is due happens here, then the batches are fetched."""
        if not self.step_loop.begin_step():
            self.control.should_training_stop = True  # type: ignore[attr-defined]  # of the trainer
            return [], None
        batches = self.step_loop.fetch(num_batches)
        items = self._get_num_items_in_batch(batches, device)
        self.prepare_step(batches)
        return batches, items

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> Any:
        """Tokens with a label, of the step on all ranks; sent and added up without waiting."""
        labels = [batch["labels"] for batch in batch_samples if "labels" in batch]
        if not labels:
            return None
        if self._loss_shifts_labels:  # type: ignore[attr-defined]  # of the trainer
            labels = [one[..., 1:] for one in labels]
        total = torch.tensor(sum(int(one.ne(IGNORED).sum()) for one in labels))
        if device.type == "cuda":
            total = total.pin_memory().to(device, non_blocking=True)
        if self.accelerator.num_processes > 1:  # type: ignore[attr-defined]  # of the trainer
            dist.all_reduce(total)
        return total

    def prepare_step(self, batches: list[Any]) -> None:
        """What a loss over a whole step must know before its first micro-batch."""

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """One micro-batch, unless the step is being dropped."""
        if not self.step_loop.may_continue():
            return torch.zeros((), device=self.args.device)  # type: ignore[attr-defined]  # of the trainer
        with self.step_loop.tally.time("compute"), span(MICRO_BATCH):
            step = self._fast_step if self.fast else super().training_step  # type: ignore[misc]  # of the trainer
            loss: Tensor = step(model, inputs, num_items_in_batch)
            self.step_loop.tally.losses.append(loss)
        return loss

    def _fast_step(self, model: Any, inputs: Any, num_items_in_batch: Any) -> Tensor:
        """What the HF trainer does, without walking over all modules and without DDP's wrapper."""
        trainer: Any = self
        if not trainer.model.training:
            trainer.model.train()
        inputs = trainer._prepare_inputs(inputs)
        loss: Tensor = trainer.compute_loss(
            trainer.model, inputs, num_items_in_batch=num_items_in_batch
        )
        trainer.accelerator.backward(loss)
        return loss.detach()

    def _prepare_input(self, data: Any) -> Any:
        """To the device without waiting for the work that is already queued there."""
        device = self.args.device  # type: ignore[attr-defined]  # of the trainer
        if isinstance(data, Tensor) and device.type == "cuda" and data.device.type == "cpu":
            return sent(data, device)
        return super()._prepare_input(data)  # type: ignore[misc]  # of the trainer

    def _clip_grad_norm(self, model: Any) -> Tensor:
        """Settings, clipping and the guard's verdict, between backward and update."""

        def clip(limit: float) -> Tensor:
            if self.fast:
                self.fast.average_gradients()
            norm: Tensor = self.accelerator.clip_grad_norm_(model.parameters(), limit)  # type: ignore[attr-defined]  # of the trainer
            return norm

        with span("judge"):
            return self.step_loop.judge(clip)

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        return grad_norm

    def floating_point_ops(self, inputs: Any) -> int:
        """Not counted: walking all parameters at every micro-batch costs more than it tells."""
        return 0


def leave_ranks_to_themselves(accelerator: Any) -> None:
    """Prepare models without DDP around them.

    DDP would hold on to the nodes where gradients arrive, which belong to the stream that is
    current when it is made; a backward pass that is captured may not reach into another stream.
    """
    accelerator.prepare_model = functools.partial(accelerator.prepare_model, evaluation_mode=True)


def forget_gradients_quickly(model: Any) -> None:
    """`zero_grad` without a walk over all modules, for which the device would wait."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def zero_grad(set_to_none: bool = True) -> None:
        for parameter in trained:
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()

    model.zero_grad = zero_grad


def guard_optimizer(optimizer: Any, step_loop: StepLoop) -> None:
    """Let a refused or dropped step pass the optimizer without touching weights or state."""
    step = optimizer.step

    @functools.wraps(step)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if step_loop.may_update():
            with span("update"), step_loop.gated():
                return step(*args, **kwargs)
        if optimizer.scaler is not None and optimizer.scaler._found_inf_per_device(
            optimizer.optimizer
        ):
            optimizer.scaler.update()
        return None

    optimizer.step = guarded


def poison_nonfinite(accelerator: Any, step_loop: StepLoop) -> None:
    """Make a loss that is not finite leave its mark on every gradient.

    The all-reduce carries the mark to every rank, so all judge the step alike without asking, and
    no rank waits for its device to learn that all is well.
    """
    backward = accelerator.backward

    @functools.wraps(backward)
    def marked(loss: Tensor, **kwargs: Any) -> None:
        if not step_loop.may_differentiate():
            return
        finite = torch.isfinite(loss.detach())
        with span("backward"):
            backward(loss * torch.where(finite, 1.0, math.nan), **kwargs)

    accelerator.backward = marked


class StepCallback(TrainerCallback):  # type: ignore[misc]  # transformers is untyped
    """Tells the stepper when training begins and when a step's counters have moved."""

    def __init__(self, step_loop: StepLoop, trainer: SteppedTrainer) -> None:
        self._step_loop = step_loop
        self._trainer: Any = trainer

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Optimizer and schedule exist: guard the one, return to a checkpoint if asked."""
        step_loop, optimizer, accelerator = (
            self._step_loop,
            kwargs["optimizer"],
            self._trainer.accelerator,
        )
        guard_optimizer(optimizer, step_loop)
        if self._trainer.fast:  # elsewhere gradients do not outlive the step
            step_loop.gate = gate_of(optimizer)
        if (scaler := accelerator.scaler) is not None:
            step_loop.loss_scale = lambda: float(scaler.get_scale())
        poison_nonfinite(accelerator, step_loop)
        step_loop.begin()

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The weights have changed, unless the guard or the scaler refused."""
        if not kwargs["optimizer"].step_was_skipped:
            self._step_loop.optimizer_stepped()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Journal the step; a dropped one is taken back and does not count."""
        planned = state.global_step < args.max_steps
        counted = self._step_loop.end_step(last=not planned)
        if not counted or planned:
            control.should_training_stop = False
