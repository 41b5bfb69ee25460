"""The moving average of the adapter."""

from __future__ import annotations

import pytest
import torch

from fttui.engine.train.checkpoint.ema import WeightsEma


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_average_follows_its_formula(dtype: torch.dtype) -> None:
    weight = torch.zeros(3, dtype=dtype)
    ema = WeightsEma({"w": weight}, decay=0.5)
    expected = 0.0
    for update in range(1, 15):
        weight += 1
        ema.update()
        decay = min(0.5, (1 + update) / (10 + update))
        expected = decay * expected + (1 - decay) * update
    assert ema.average["w"].dtype == torch.float32
    torch.testing.assert_close(ema.average["w"], torch.full((3,), expected))


def test_the_model_gets_its_own_weights_back_also_after_an_error() -> None:
    weight = torch.nn.Parameter(torch.randn(5).to(torch.bfloat16))
    ema = WeightsEma({"w": weight}, decay=0.9)
    with torch.no_grad():
        weight.add_(1)
    own = weight.detach().clone()
    ema.update()
    average = ema.average["w"].clone()

    def evaluate() -> None:
        with ema.in_place_of_weights():
            assert torch.equal(weight, average.to(torch.bfloat16))
            assert not torch.equal(weight, own)
            raise KeyError

    with pytest.raises(KeyError):
        evaluate()
    assert torch.equal(weight, own)
    assert torch.equal(ema.average["w"], average)


def test_a_restored_average_goes_on_as_if_never_left() -> None:
    weight = torch.zeros(4)
    ema = WeightsEma({"w": weight}, decay=0.9)
    for _ in range(3):
        weight += 1
        ema.update()
    saved, updates = ema.average["w"].clone(), ema.updates
    weight += 1
    ema.update()
    straight = ema.average["w"].clone()
    place = ema.average["w"].data_ptr()
    ema.restore({"w": saved}, updates)
    ema.update()
    assert torch.equal(ema.average["w"], straight)
    assert ema.average["w"].data_ptr() == place
