"""Memory probe: measures the longest batch with a trial step before the run begins.

The trial runs before the first step and restores everything it changes, so that the run is bitwise
the same as without it.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...config.memory.estimate import GIB, MemoryEstimate, estimate_memory, read_architecture
from ...config.memory.fit import advice
from ...config.schema import RunConfig
from ...core.memory_watch import MemoryPlanCheck
from ...data.batches.batch_source import Batch
from ...errors import FttuiError, ModelError
from ...model.load import recompute_all
from ..checkpoint.optimizer_state import (
    OptimizerState,
    bare,
    capture_optimizer,
    restart_optimizer,
)
from ..checkpoint.rng import capture_rng, restore_rng


class MicroBatchTooLarge(Exception):
    """The longest batch does not fit, but the run may train on smaller ones.

    Attributes:
        smaller: The next smaller size that divides the sequences of an optimizer step.
    """

    def __init__(self, smaller: int) -> None:
        super().__init__(f"the next smaller micro-batch has {smaller} sequences")
        self.smaller = smaller


@dataclass(frozen=True)
class Peak:
    """Peak bytes on the device; 0 on a CPU."""

    allocated: int
    reserved: int


def may_try(trainer: Any, world_size: int, examples_known: bool) -> bool:
    """Return whether a trial is possible: on a CUDA device, a single rank, with known examples."""
    return trainer.args.device.type == "cuda" and world_size == 1 and examples_known


def try_longest(
    config: RunConfig,
    trainer: Any,
    examples: Sequence[Any],
    collate: Callable[[Sequence[Any]], Batch],
    planned: MemoryEstimate | None,
    plan: MemoryPlanCheck | None = None,
    *,
    smaller: int | None = None,
) -> dict[str, str]:
    """Measure the longest batch before a run on one device begins, and return the fact to show.

    If it does not fit, smaller batches are asked for. If there are none, and layers keep their
    activations, all layers are recomputed from then on.
    If the trial fails with an error of another kind, the fact says that nothing was measured.

    In fast mode the trial captures the graph of the longest batch, which the run keeps; graphs of
    shorter batches reuse its memory.

    Args:
        config: Configuration of the run.
        trainer: The trainer with its optimizer, before anything was trained or restored.
        examples: All training examples; their `length` decides which are the longest.
        collate: Makes a batch of examples.
        planned: The estimate for the loaded model; None if there is none.
        plan: Compares the steps of the run with the plan; corrected by what is measured.
        smaller: The next smaller batch on which the run may train instead; None if there is none.

    Raises:
        MicroBatchTooLarge: The batch does not fit, and `smaller` may.
        ModelError: The batch does not fit; the text names the settings to change.
    """
    device = trainer.args.device
    longest = sorted(examples, key=lambda example: -example.length)[: config.train.micro_batch_size]
    try:
        measured, recomputed = _measured(trainer, lambda: collate(longest), smaller)
    except torch.OutOfMemoryError as error:
        raise ModelError(_too_large(config, planned, device)) from error
    except RuntimeError as error:
        # Everything is restored; if training itself is broken, the first step raises the error.
        return {"memory of a step": f"not measured: {str(error).splitlines()[0]}"}
    graphs = trainer.forward.uses_graphs
    if plan is not None:
        used = measured.reserved if graphs else measured.allocated
        plan.correct(used, "reserved" if graphs else "allocated")
    text = _memory_fact(planned, measured, graphs=graphs)
    if recomputed:
        text += (
            f"; it did not fit while {recomputed} layers kept their activations, so they are "
            "recomputed"
        )
    return {"memory of a step": text}


def _measured(trainer: Any, batch: Callable[[], Batch], smaller: int | None) -> tuple[Peak, int]:
    """Return the peak of the trial, and how many layers had to give up their activations for it.

    Raises:
        MicroBatchTooLarge: the batch does not fit, and `smaller` may.
        torch.OutOfMemoryError: the batch does not fit even if all layers are recomputed.
    """
    try:
        return trial_step(trainer, batch()), 0
    except torch.OutOfMemoryError:
        if smaller is not None:
            raise MicroBatchTooLarge(smaller) from None
        # The error keeps the tensors of the trial alive, so the next one begins after this block.
        layers = recompute_all(trainer.model)
        if layers == 0:
            raise
    trainer.forward.release()
    return trial_step(trainer, batch()), layers


def _memory_fact(planned: MemoryEstimate | None, measured: Peak, *, graphs: bool) -> str:
    """Return the text with planned and measured memory; with graphs, reserved memory counts."""
    found, kind = (measured.reserved, " with its graphs") if graphs else (measured.allocated, "")
    before = f"planned {planned.compared / GIB:.2f} GiB, " if planned else ""
    return f"{before}{found / GIB:.2f} GiB measured on the longest batch{kind}"


def trial_step(trainer: Any, batch: Batch) -> Peak:
    """Run two micro-batches with an update between them, undo all, and return the peak memory.

    Raises:
        torch.OutOfMemoryError: they do not fit into the memory; everything is undone, too.
    """
    device = trainer.args.device
    trained = [p for p in trainer.model.parameters() if p.requires_grad]
    trained += list(trainer.own_parameters.values())
    before = [p.detach().to("cpu", copy=True) for p in trained]
    fresh = capture_optimizer(trainer.optimizer)
    rng = capture_rng()
    _reset_peak(device)
    try:
        _pass(trainer, {**batch})
        _update(trainer)
        # Later micro-batches run with gradients and optimizer state already in memory.
        if trainer.args.gradient_accumulation_steps == 1:
            trainer.model.zero_grad(set_to_none=True)
        held = trainer.extra_pass.held()
        _pass(trainer, {**batch})
        del held  # until here, as during a second pass over the micro-batches
        return _peak(device)
    finally:
        trainer.model.zero_grad(set_to_none=True)
        for parameter in trained:
            parameter.grad = None
        _put_back(trainer, trained, before, fresh)
        restore_rng(rng)
        _reset_peak(device)


def _peak(device: torch.device) -> Peak:
    if device.type != "cuda":
        return Peak(0, 0)
    allocated = torch.cuda.max_memory_allocated(device)
    return Peak(allocated, torch.cuda.max_memory_reserved(device))


def _pass(trainer: Any, batch: Batch) -> None:
    batch.pop("ids", None)
    trainer.step_loop.tally.count(batch)
    trainer.prepare_step([batch])
    inputs = trainer._prepare_inputs(batch)
    trainer.model.train()
    with trainer.compute_loss_context_manager():
        loss = trainer.compute_loss(trainer.model_wrapped, inputs, num_items_in_batch=1)
    trainer.accelerator.backward(loss)


def _update(trainer: Any) -> None:
    """Run the optimizer, except a paged one, whose memory could not be freed again.

    With the loss scaler of fp16 it is not run either.
    """
    if trainer.accelerator.scaler is None and not getattr(
        bare(trainer.optimizer), "is_paged", False
    ):
        bare(trainer.optimizer).step()


def free_unused(device: torch.device) -> None:
    """Give memory back to the device that nothing uses any more."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _put_back(
    trainer: Any, trained: list[Tensor], before: list[Tensor], fresh: OptimizerState
) -> None:
    restart_optimizer(trainer.optimizer, fresh)
    with torch.no_grad():
        for parameter, value in zip(trained, before, strict=True):
            parameter.copy_(value)


def _reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def planned_of(config: RunConfig, trainer: Any) -> MemoryEstimate | None:
    """Return the memory estimate for the loaded model; None if its settings cannot be read."""
    try:
        arch = read_architecture(trainer.model.config.to_dict())
    except FttuiError:
        return None
    if trainer.args.device.type != "cuda":
        return estimate_memory(config, arch, "cpu")
    bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    return estimate_memory(config, arch, "cuda", bf16=bf16)


def plan_check(planned: MemoryEstimate | None) -> MemoryPlanCheck | None:
    """Return the comparison of steps with the memory plan; None on a CPU or without a plan."""
    if planned is None or planned.device != "cuda":
        return None
    return MemoryPlanCheck(planned.compared, "reserved" if planned.graphs else "allocated")


def _too_large(config: RunConfig, planned: MemoryEstimate | None, device: torch.device) -> str:
    text = "the longest batch does not fit in the GPU's memory"
    if planned is None or device.type != "cuda":
        return f"{text}; lower train.batch or data.max_length"
    free, _ = torch.cuda.mem_get_info(device)
    have = free + torch.cuda.memory_reserved(device)
    lines = advice(planned, min(have, planned.high - 1), config)
    return "\n  ".join([f"{text}; apply these changes in order until it fits:", *lines])
