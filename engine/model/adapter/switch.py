"""Switch the adapter of a model off for a while, so that it computes as its base does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def adapter_off(model: Any) -> Iterator[None]:
    """Switch the adapter of a model off in the block; what is trained stays the same after it.

    PEFT switches the gradients of all weights of an adapter on when it switches it on.
    """
    trained = [(weight, weight.requires_grad) for weight in model.parameters()]
    try:
        with model.disable_adapter():
            yield
    finally:
        for weight, was in trained:
            weight.requires_grad_(was)
