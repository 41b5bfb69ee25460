"""Memory probe: measures the longest batch with a trial step before the run begins.

It happens before the first step, and everything it touched is put back: the run that follows is
the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...config.memory.estimate import GIB, MemoryEstimate, estimate_memory, read_architecture
from ...config.memory.fit import advice
from ...config.schema import RunConfig
from ...data.batch_source import Batch
from ...errors import FttuiError, ModelError
from ..checkpoint.rng import capture_rng, restore_rng


@dataclass(frozen=True)
class Peak:
    """Most bytes at once on the device; 0 on a CPU."""

    allocated: int
    reserved: int


def may_try(trainer: Any, world_size: int, examples_known: bool) -> bool:
    """A trial tells something, and changes nothing for others: with several ranks none is alone."""
    return trainer.args.device.type == "cuda" and world_size == 1 and examples_known


def try_longest(
    config: RunConfig,
    trainer: Any,
    examples: Sequence[Any],
    collate: Callable[[Sequence[Any]], Batch],
) -> dict[str, str]:
    """Measure the longest batch before a run of one device begins; what to say about it.

    In fast mode this makes the graph of the longest batch, which the run then has: the shorter
    ones that come later find their memory there.

    Args:
        config: The run.
        trainer: With its optimizer, before anything was trained or restored.
        examples: All training examples; a `length` tells the longest.
        collate: From examples to a batch.

    Raises:
        ModelError: It does not fit; the text says what to change.
    """
    device = trainer.args.device
    planned = planned_of(config, trainer)
    longest = sorted(examples, key=lambda example: -example.length)[: config.train.batch]
    try:
        measured = trial_step(trainer, collate(longest))
    except torch.OutOfMemoryError as error:
        raise ModelError(_too_large(config, planned, device)) from error
    except RuntimeError as error:
        # All is put back; if it is more than the trial that fails, the first step will say so.
        return {"memory of a step": f"not tried: {str(error).splitlines()[0]}"}
    return {"memory of a step": _said(planned, measured, graphs=trainer.forward.uses_graphs)}


def _said(planned: MemoryEstimate | None, measured: Peak, *, graphs: bool) -> str:
    """Return planned and measured memory; with graphs the reserved memory counts."""
    found, kind = (measured.reserved, " with its graphs") if graphs else (measured.allocated, "")
    before = f"planned {planned.compared / GIB:.2f} GiB, " if planned else ""
    return f"{before}{found / GIB:.2f} GiB measured on the longest batch{kind}"


def trial_step(trainer: Any, batch: Batch) -> Peak:
    """Run a micro-batch forward, backward and through the optimizer, and again; take it back."""
    device = trainer.args.device
    trained = [p for p in trainer.model.parameters() if p.requires_grad]
    trained += list(getattr(trainer, "own_parameters", {}).values())
    before = [p.detach().to("cpu", copy=True) for p in trained]
    rng = capture_rng()
    _reset_peak(device)
    try:
        _pass(trainer, {**batch})
        _update(trainer)
        # Later micro-batches find gradients and the optimizer's state there.
        if trainer.args.gradient_accumulation_steps == 1:
            trainer.model.zero_grad(set_to_none=True)
        _pass(trainer, {**batch})
        return _peak(device)
    finally:
        trainer.model.zero_grad(set_to_none=True)
        for parameter in trained:
            parameter.grad = None
        _put_back(trainer, trained, before)
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
    """Run the optimizer, except a paged one, whose memory could not be freed again."""
    if trainer.accelerator.scaler is None and not getattr(_bare(trainer), "is_paged", False):
        _bare(trainer).step()


def _put_back(trainer: Any, trained: list[Tensor], before: list[Tensor]) -> None:
    _bare(trainer).state.clear()
    with torch.no_grad():
        for parameter, value in zip(trained, before, strict=True):
            parameter.copy_(value)


def _bare(trainer: Any) -> Any:
    """The optimizer inside accelerate's wrapper."""
    return getattr(trainer.optimizer, "optimizer", trainer.optimizer)


def _reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def planned_of(config: RunConfig, trainer: Any) -> MemoryEstimate | None:
    """The estimate by the loaded model's own configuration; None where there is none."""
    try:
        arch = read_architecture(trainer.model.config.to_dict())
    except FttuiError:
        return None
    return estimate_memory(config, arch, "cuda" if trainer.args.device.type == "cuda" else "cpu")


def _too_large(config: RunConfig, planned: MemoryEstimate | None, device: torch.device) -> str:
    text = "the longest batch does not fit in the GPU's memory"
    if planned is None or device.type != "cuda":
        return f"{text}; lower train.batch or data.max_length"
    free, _ = torch.cuda.mem_get_info(device)
    have = free + torch.cuda.memory_reserved(device)
    lines = advice(planned, min(have, planned.high - 1), config)
    return "\n  ".join([f"{text}; what to change, each on top of the ones before:", *lines])
