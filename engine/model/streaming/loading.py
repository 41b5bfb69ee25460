"""Quantize weights on the device while they are loaded into host memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import bitsandbytes.functional as bnb
import torch


@contextmanager
def quantizing_on(device: torch.device) -> Iterator[None]:
    """Quantize weights that are loaded into host memory on a device, inside the `with` block.

    The result is that of a model loaded on the device, of which only one weight is there at a time.
    """
    original = bnb.quantize_4bit

    def quantized(weight: torch.Tensor, *arguments: Any, **options: Any) -> tuple[Any, Any]:
        packed, state = original(weight.to(device), *arguments, **options)
        state.to("cpu")
        return packed.to("cpu"), state

    bnb.quantize_4bit = quantized
    try:
        yield
    finally:
        bnb.quantize_4bit = original
