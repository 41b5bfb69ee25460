"""Replaced layers against the ones they replace."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

from fttui.engine.train.cuda_graphs.fusion import fuse, rotary
from fttui.engine.train.cuda_graphs.pointwise import Kernels, kernels_for

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
    assert len(fuse(model, Kernels())) == 2
    assert distance(result(model), right) < 1e-5


def test_in_mixed_precision_they_are_as_exact() -> None:
    model = adapted(nf4=False)
    exact, before = result(model), result(model, mixed=True)
    fuse(model, Kernels())
    assert distance(result(model, mixed=True), exact) < 1.2 * distance(before, exact)


def test_outside_training_and_without_adapter_the_layers_are_their_own() -> None:
    model = adapted(nf4=False)
    fuse(model, Kernels())
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
    assert len(fuse(adapted(nf4=False, **lora), Kernels())) == 1


def test_another_norm_is_left_alone() -> None:
    model = adapted(nf4=False)
    norm = model.get_base_model().get_submodule("norm")
    own = type(norm).forward

    class OneMoreRMSNorm(type(norm)):  # type: ignore[misc]  # a class made here
        def forward(self, x: Tensor) -> Tensor:
            return own(self, x) + own(self, x) / self.weight

    other = copy.deepcopy(model)
    other.get_base_model().get_submodule("norm").__class__ = OneMoreRMSNorm
    assert len(fuse(other, Kernels())) == 1


def turned(function: Any, x: Tensor, *others: Tensor) -> list[Tensor]:
    """A result and its gradients by everything that has one."""
    out = function(x, *others)
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(3), dtype=out.dtype)
    by = [one for one in (x, *others) if one.requires_grad]
    return [out, *torch.autograd.grad((out * weights).sum(), by)]


def test_a_product_behind_a_gate_and_its_gradients() -> None:
    gate, up = torch.randn(2, 3, 4, 8, dtype=torch.float64).requires_grad_().unbind()
    right = turned(lambda g, u: torch.nn.functional.silu(g) * u, gate, up)
    assert distance(turned(Kernels().multiply, gate, up), right) < 1e-12


def test_rotary_positions_and_their_gradients() -> None:
    from transformers.models.llama import modeling_llama

    def usual(q: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return modeling_llama.apply_rotary_pos_emb(q, q, cos, sin, unsqueeze_dim=0)[0]

    x = torch.randn(2, 4, 6, 8, dtype=torch.float64).requires_grad_()
    cos, sin = torch.randn(2, 6, 8, dtype=torch.float64)
    assert distance(turned(Kernels().turn, x, cos, sin), turned(usual, x, cos, sin)) < 1e-12


@pytest.fixture
def llama() -> Any:
    from transformers import LlamaConfig, LlamaModel

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64}
    torch.manual_seed(0)
    return LlamaModel(LlamaConfig(**sizes, **heads)).train()


def test_gates_are_replaced_where_they_are_what_they_seem(llama: Any) -> None:
    x = torch.randn(2, 5, 32)
    before = llama.layers[0].mlp(x)
    assert len(fuse(llama, Kernels())) == 2 + 5, "two gates, five norms"
    assert torch.allclose(llama.layers[0].mlp(x), before, atol=1e-7)
    assert torch.allclose(llama.eval().layers[0].mlp(x), before, atol=1e-7)


def test_another_activation_is_left_alone(llama: Any) -> None:
    for layer in llama.layers:
        layer.mlp.act_fn = nn.GELU()
    assert len(fuse(llama, Kernels())) == 5


def test_positions_are_turned_by_ours_only_within(llama: Any) -> None:
    from transformers.models.llama import modeling_llama

    usual, calls = modeling_llama.apply_rotary_pos_emb, []
    ids = torch.arange(6)[None]
    right = llama(ids).last_hidden_state

    class Counted(Kernels):
        def turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
            calls.append(x.shape)
            return super().turn(x, cos, sin)

    with rotary(llama, Counted()):
        found = llama(ids).last_hidden_state
    assert len(calls) == 2 * 2
    assert torch.allclose(found, right, atol=1e-6)
    assert modeling_llama.apply_rotary_pos_emb is usual


def test_another_kind_of_rotary_positions_is_left_alone(llama: Any, monkeypatch: Any) -> None:
    from transformers.models.cohere.modeling_cohere import apply_rotary_pos_emb
    from transformers.models.llama import modeling_llama

    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", apply_rotary_pos_emb)
    with rotary(llama, Kernels()):
        assert modeling_llama.apply_rotary_pos_emb is apply_rotary_pos_emb


def test_where_nothing_can_be_compiled_it_says_why_and_goes_on(monkeypatch: Any) -> None:
    def no_compiler() -> Kernels:
        raise RuntimeError("Failed to find C compiler.\nPlease specify one")

    monkeypatch.setattr("fttui.engine.train.cuda_graphs.pointwise._compiled", no_compiler)
    kernels, why = kernels_for(torch.device("cuda"))
    assert not kernels.compiled
    assert why == "RuntimeError: Failed to find C compiler."
    assert kernels_for(torch.device("cpu")) == (Kernels(), "")
