"""What FSDP cannot split is refused by name."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fttui.engine.errors import ModelError
from fttui.engine.train.distributed import sharding


def quantized() -> nn.Module:
    layer = nn.Linear(4, 4)
    layer.weight = nn.Parameter(torch.zeros(8, dtype=torch.uint8), requires_grad=False)
    return nn.Sequential(layer)


def test_a_torch_that_splits_no_integers_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharding, "INTEGERS_SINCE", "99.1")
    with pytest.raises(ModelError, match=r"weight 0\.weight with torch .*install torch 99\.1"):
        sharding.require_divisible(quantized())
    sharding.require_divisible(nn.Linear(4, 4))


def test_a_torch_that_splits_integers_takes_quantized_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sharding, "INTEGERS_SINCE", "2.0")
    sharding.require_divisible(quantized())
