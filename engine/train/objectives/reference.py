"""The reference of preference training: the model without adapter, or as it was at the start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

import torch
from peft import PeftModel
from torch import Tensor

from ...config.schema import RunConfig
from ...model.adapter.switch import adapter_off
from ..checkpoint.training_state import trained_weights


class StartReference:
    """Copies of the weights before training, which take the place of the trained ones.

    The values are exchanged within the same tensors, so captured graphs read them too, and no
    second model is in memory.
    """

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        # Tied weights have several names but are exchanged once.
        self._live = list({id(weight): weight for weight in weights.values()}.values())
        self.kept = [weight.detach().clone() for weight in self._live]
        """The start weights; within a block, the trained ones, which the block has taken out."""

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Put the weights from before training into the model for the block."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        for live, kept in zip(self._live, self.kept, strict=True):
            other = live.clone()
            live.copy_(kept)
            kept.copy_(other)
        # Mixed precision keeps casts of the weights for the length of its block.
        torch.clear_autocast_cache()


class BaseReference:
    """The model without its adapter."""

    kept: tuple[Tensor, ...] = ()

    def __init__(self, model: PeftModel) -> None:
        self._model = model

    def __call__(self) -> AbstractContextManager[None]:
        """Return a context in which the adapter is off."""
        return adapter_off(self._model)


def reference_of(config: RunConfig, model: PeftModel) -> StartReference | BaseReference | None:
    """Return the reference of a run; called before anything is trained or restored.

    It is None if the loss does not compare with a reference.
    """
    if not config.has_reference:
        return None
    if config.copies_reference:
        return StartReference(trained_weights(model))
    return BaseReference(model)
