"""What FSDP cannot split is refused by name, and 4-bit weights are stored so that it can."""

from __future__ import annotations

import bitsandbytes as bnb
import pytest
import torch
from torch import nn

from fttui.engine.errors import ModelError
from fttui.engine.train.distributed import sharding
from fttui.engine.train.patches import keep_quant_states, store_as_floats


def test_a_weight_of_integers_that_is_not_of_four_bits_is_named() -> None:
    layer = nn.Linear(4, 4)
    layer.weight = nn.Parameter(torch.zeros(8, dtype=torch.uint8), requires_grad=False)
    with pytest.raises(ModelError, match=r"weight 0\.weight, which has integers"):
        sharding.require_divisible(nn.Sequential(layer))
    sharding.require_divisible(nn.Linear(4, 4))


@pytest.mark.parametrize("form", ["nf4", "fp4"])
def test_a_weight_of_four_bits_is_stored_as_floats_bit_by_bit(form: str) -> None:
    layer = bnb.nn.Linear4bit(64, 32, bias=False, quant_type=form, compute_dtype=torch.float32)
    layer.to("cpu")
    if layer.weight.dtype != torch.uint8:
        layer.weight.data, layer.weight.quant_state = bnb.functional.quantize_4bit(
            torch.randn(32, 64), quant_type=form
        )
    layer.train()
    bits, states = layer.weight.detach().clone(), torch.randn(3, 64, requires_grad=True)
    expected = layer(states)
    keep_quant_states(layer, torch.device("cpu"))
    store_as_floats(layer)
    sharding.require_divisible(layer)
    assert torch.equal(layer.weight.detach().reshape(-1).view(torch.uint8), bits.reshape(-1))
    assert torch.equal(layer(states), expected)
