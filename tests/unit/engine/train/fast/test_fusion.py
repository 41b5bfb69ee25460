"""Replaced layers against the ones they replace."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

from fttui.engine.train.fast.fusion import fuse

if TYPE_CHECKING:
    from peft import PeftModel

WIDTH = 64


class Block(nn.Module):
    """A norm and an adapted linear."""

    def __init__(self) -> None:
        super().__init__()
        from transformers.models.llama.modeling_llama import LlamaRMSNorm

        self.norm = LlamaRMSNorm(WIDTH)
        self.linear = nn.Linear(WIDTH, 32, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.norm(x))


def adapted(*, nf4: bool, dropout: float = 0.0, **lora: Any) -> PeftModel:
    import bitsandbytes as bnb
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    block = Block()
    nn.init.normal_(block.norm.weight)
    if nf4:
        weight = block.linear.weight.data
        block.linear = bnb.nn.Linear4bit(WIDTH, 32, bias=False, compute_dtype=torch.float32)
        block.linear.weight = bnb.nn.Params4bit(
            weight, requires_grad=False, quant_type="nf4", compress_statistics=True
        ).to("cpu")
    block.requires_grad_(False)
    config = LoraConfig(
        r=4, target_modules=["linear"], lora_dropout=dropout, init_lora_weights=False, **lora
    )
    return get_peft_model(block, config).train()


def result(model: nn.Module, mixed: bool = False) -> list[Tensor]:
    x = torch.randn(2, 5, WIDTH, generator=torch.Generator().manual_seed(1)).requires_grad_()
    torch.manual_seed(2)
    with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
        out = model(x)
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(3))
    trained = [p for p in model.parameters() if p.requires_grad]
    return [out, *torch.autograd.grad((out * weights).sum(), [x, *trained])]


def distance(found: list[Tensor], right: list[Tensor]) -> float:
    pairs = zip(found, right, strict=True)
    return max(float((a - b).detach().norm() / b.detach().norm()) for a, b in pairs)


@pytest.mark.parametrize("nf4", [False, True], ids=["plain", "nf4"])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_outputs_and_gradients_stay(nf4: bool, dropout: float) -> None:
    model = adapted(nf4=nf4, dropout=dropout)
    right = result(model)
    assert len(fuse(model)) == 2
    assert distance(result(model), right) < 1e-5


def test_in_mixed_precision_they_are_as_exact() -> None:
    model = adapted(nf4=False)
    exact, before = result(model), result(model, mixed=True)
    fuse(model)
    assert distance(result(model, mixed=True), exact) < 1.2 * distance(before, exact)


def test_outside_training_and_without_adapter_the_layers_are_their_own() -> None:
    model = adapted(nf4=False)
    fuse(model)
    x = torch.ones(1, WIDTH)
    with model.disable_adapter():
        base = model(x)
    assert torch.equal(
        base,
        model.get_base_model().get_submodule("linear.base_layer")(
            model.get_base_model().get_submodule("norm")(x)
        ),
    )
    assert not torch.allclose(model.eval()(x), base)


@pytest.mark.parametrize("lora", [{"use_dora": True}, {"lora_bias": True}])
def test_other_adapters_are_left_alone(lora: dict[str, Any]) -> None:
    assert len(fuse(adapted(nf4=False, **lora))) == 1


def test_another_norm_is_left_alone() -> None:
    model = adapted(nf4=False)
    norm = model.get_base_model().get_submodule("norm")
    own = type(norm).forward

    class OneMoreRMSNorm(type(norm)):  # type: ignore[misc]  # a class made here
        def forward(self, x: Tensor) -> Tensor:
            return own(self, x) + own(self, x) / self.weight

    other = copy.deepcopy(model)
    other.get_base_model().get_submodule("norm").__class__ = OneMoreRMSNorm
    assert len(fuse(other)) == 1
