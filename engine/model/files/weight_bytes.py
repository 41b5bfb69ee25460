"""Bytes of a model's weights on the device, from the headers of its files, without torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...config.memory.architecture import EXPERTS
from .weight_files import headers_of

_FOUR_BITS = 0.5
_BLOCK = 64
"""Weights per quantization constant in 4 bits."""
_ENDS = ("embed", "wte", "lm_head", "embed_out")
"""Parts of the names of embedding and output head, which stay unquantized."""


@dataclass(frozen=True)
class WeightBytes:
    """Bytes of the weights after loading, and while they are loaded."""

    held: int
    loading: int
    """More than `held` if stacked experts are quantized only after all weights are loaded."""


def weight_bytes(
    source: str,
    revision: str | None,
    settings: Mapping[str, Any],
    *,
    quantize: str,
    double_quant: bool,
    number: int,
) -> WeightBytes | None:
    """Return the bytes of a model's weights; None without safetensors files on this machine.

    Args:
        source: A model folder, or a hub id whose files may be in the local cache.
        revision: Revision on the hub.
        settings: The parsed config.json.
        quantize: As `model.quantize`.
        double_quant: As `model.double_quant`.
        number: Bytes per unquantized weight.

    Raises:
        ModelError: A weight file is missing or damaged.
    """
    headers = headers_of(source, revision)
    if headers is None:
        return None
    text = settings.get("text_config") or settings
    counts = (text.get(name) for name in EXPERTS)
    experts = max((count for count in counts if isinstance(count, int)), default=0)
    constant = (1 + 4 / 256) / _BLOCK if double_quant else 4 / _BLOCK
    share = {"none": number, "int8": 1}.get(quantize, _FOUR_BITS + constant)
    held = loading = 0.0
    for name, shape in _tensors(headers):
        size, stacked = math.prod(shape), len(shape) > 2 or ".experts." in name
        packed = _is_packed(name, shape, experts) and not (stacked and quantize == "int8")
        held += size * (share if packed else number)
        loading += size * (share if packed and not stacked else number)
    return WeightBytes(int(held), int(max(held, loading)))


def _tensors(headers: list[Mapping[str, Any]]) -> Iterator[tuple[str, list[int]]]:
    for header in headers:
        for name, part in header.items():
            if name != "__metadata__":
                yield name, part["shape"]


def _is_packed(name: str, shape: list[int], experts: int) -> bool:
    """Return whether a weight is quantized, which linear layers and experts are.

    Routers, embeddings and output heads are not.
    """
    router = experts > 1 and shape[0] in (1, experts) and len(shape) == 2
    parts = name.split(".")
    return len(shape) > 1 and not router and not any(p.startswith(_ENDS) for p in parts[-3:])
