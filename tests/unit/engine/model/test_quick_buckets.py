"""Buckets that are read from a table are those that torch finds by searching."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from bitsandbytes.functional import get_4bit_type, quantize_4bit

from fttui.engine.model.quantization import quick_buckets

SEARCH: Any = torch.bucketize


def bounds_of(kind: str) -> torch.Tensor:
    code = get_4bit_type(kind, device="cpu").sort().values
    return (code[:-1] + code[1:]) / 2


def values_around(bounds: torch.Tensor) -> torch.Tensor:
    """Random numbers of all sizes, the bounds themselves, and what is next to them."""
    drawn = torch.randn(300_000, generator=torch.Generator().manual_seed(1))
    up, down = (torch.nextafter(bounds, torch.tensor(end)) for end in (math.inf, -math.inf))
    odd = torch.tensor([0.0, -0.0, 1e-45, -1e-45, 1.0, -1.0, 3e38, -3e38])
    return torch.cat([drawn, 1e-3 * drawn, bounds, up, down, odd])


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("more", [[], [math.nan], [math.inf, -math.inf]])
@pytest.mark.parametrize("short", [False, True])
def test_a_table_finds_the_buckets_that_a_search_finds(
    kind: str, more: list[float], short: bool
) -> None:
    bounds = bounds_of(kind)
    values = torch.cat([values_around(bounds), torch.tensor(more)])
    wanted = torch.bucketize(values, bounds, out_int32=short)
    with quick_buckets():
        assert torch.bucketize is not SEARCH
        found = torch.bucketize(values, bounds, out_int32=short)
    assert torch.equal(found, wanted)
    assert found.dtype == wanted.dtype
    assert torch.bucketize is SEARCH


def test_what_a_table_does_not_cover_is_searched() -> None:
    close = torch.tensor([1.0, 1.0001, 1.0002])
    values = torch.linspace(0, 2, 1001)
    with quick_buckets():
        bucketize: Any = torch.bucketize
        for given, options in (
            (values, {}),
            (values.view(7, 143), {}),
            (values.double(), {}),
            (values, {"right": True}),
        ):
            found = bucketize(given, close.to(given.dtype), **options)
            assert torch.equal(found, SEARCH(given, close.to(given.dtype), **options))
        assert int(bucketize(1.5, close)) == 3


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_quantized_weights_are_the_same_bits(kind: str) -> None:
    weights = torch.randn(300, 128, generator=torch.Generator().manual_seed(2))
    plain, state = quantize_4bit(weights, quant_type=kind)
    with quick_buckets():
        quick, quick_state = quantize_4bit(weights, quant_type=kind)
    assert torch.equal(plain, quick)
    assert torch.equal(state.absmax, quick_state.absmax)
