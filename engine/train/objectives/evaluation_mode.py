"""A context in which a trainer's model runs without gradients and leaves no trace on the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from ...model.hidden import HiddenStates
from ..checkpoint.rng import capture_rng, restore_rng
from ..forward import States


@contextmanager
def evaluation_mode(
    trainer: Any,
    weights: Callable[[], AbstractContextManager[None]] = nullcontext,
    *,
    outside: bool = True,
) -> Iterator[None]:
    """Prepare the model for evaluation in the block; restore mode and generators after it.

    Gradients and dropout are off in the block. CUDA graphs may be freed before it to make room.

    Args:
        trainer: the Hugging Face trainer of the model.
        weights: context in which the model holds the weights to evaluate.
        outside: whether the passes in the block run outside of the trainer's forward strategy.
    """
    trainer.forward.make_room(outside=outside)
    rng = capture_rng()
    model = trainer.model
    was_training = model.training
    model.eval()
    try:
        with weights(), torch.no_grad(), trainer.compute_loss_context_manager():
            yield
    finally:
        model.train(was_training)
        restore_rng(rng)


@contextmanager
def states_of(model: Any) -> Iterator[States]:
    """Give the block a function that runs the model's own code and returns the hidden states."""
    with HiddenStates(model) as hidden:

        def states(batch: dict[str, Any]) -> Tensor:
            model(
                input_ids=batch["input_ids"],
                attention_mask=batch["attention_mask"],
                logits_to_keep=1,
            )
            return hidden.take()

        yield states
