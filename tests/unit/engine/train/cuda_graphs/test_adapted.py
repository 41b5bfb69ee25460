"""Adapted linears that share their input against the same linears by themselves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fttui.engine.train.cuda_graphs import adapted
from fttui.engine.train.cuda_graphs.fusion import fuse
from fttui.engine.train.cuda_graphs.pointwise import Kernels

WIDTH = 64


class Attention(nn.Module):
    """Three projections of one input, or with `crossed` of two, of different widths."""

    crossed = False

    def __init__(self) -> None:
        super().__init__()
        self.q_proj = nn.Linear(WIDTH, 48, bias=False)
        self.k_proj = nn.Linear(WIDTH, 16, bias=False)
        self.v_proj = nn.Linear(WIDTH, 16, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        other = x.sin() if self.crossed else x
        q, k, v = self.q_proj(x), self.k_proj(other), self.v_proj(other)
        return torch.cat((q, k.mul_(2), v), dim=-1)


def attention(*, nf4: bool = False, dropout: float = 0.0, targets: str = "qkv") -> Any:
    import bitsandbytes as bnb
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    block = Attention()
    for name, linear in list(block.named_children()) if nf4 else []:
        quantized = bnb.nn.Linear4bit(
            WIDTH, linear.out_features, bias=False, compute_dtype=torch.float32
        )
        quantized.weight = bnb.nn.Params4bit(
            linear.weight.data, requires_grad=False, quant_type="nf4", compress_statistics=True
        ).to("cpu")
        setattr(block, name, quantized)
    block.requires_grad_(False)
    names = [f"{one}_proj" for one in targets]
    ranks = {"k_proj": 2} if "k" in targets else {}
    config = LoraConfig(r=4, target_modules=names, lora_dropout=dropout,
                        init_lora_weights=False, rank_pattern=ranks)  # fmt: skip
    return get_peft_model(block, config).train()


def result(model: Any, mixed: bool = False, recomputed: bool = False) -> list[Tensor]:
    """The output, and the gradients of the input and of every trained matrix."""
    x = torch.randn(2, 5, WIDTH, generator=torch.Generator().manual_seed(1)).requires_grad_()
    torch.manual_seed(2)
    with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
        out = checkpoint(model, x, use_reentrant=False) if recomputed else model(x)
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(3))
    trained = [p for p in model.parameters() if p.requires_grad]
    return [out, *torch.autograd.grad((out * weights).sum(), [x, *trained])]


def distance(found: list[Tensor], right: list[Tensor]) -> float:
    pairs = zip(found, right, strict=True)
    return max(float((a - b).detach().norm() / b.detach().norm()) for a, b in pairs)


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of linears of every call that computed several at once."""
    calls: list[int] = []
    apply = adapted._Siblings.apply

    def counted(x: Tensor, linears: list[Any], *rest: Any) -> Any:
        calls.append(len(linears))
        return apply(x, linears, *rest)

    monkeypatch.setattr(adapted._Siblings, "apply", counted)
    return calls


@pytest.mark.parametrize("nf4", [False, True], ids=["plain", "nf4"])
@pytest.mark.parametrize("recomputed", [False, True], ids=["kept", "recomputed"])
def test_outputs_and_gradients_are_those_of_single_linears(
    shared: list[int], nf4: bool, recomputed: bool
) -> None:
    model = attention(nf4=nf4)
    right = result(model)
    fuse(model, Kernels())
    assert distance(result(model, recomputed=recomputed), right) < 1e-5
    assert shared == [3] * (1 + recomputed)


def test_in_mixed_precision_they_are_as_exact(shared: list[int]) -> None:
    model = attention()
    exact, before = result(model), result(model, mixed=True)
    fuse(model, Kernels())
    assert distance(result(model, mixed=True), exact) < 1.2 * distance(before, exact)
    assert shared == [3]


def test_those_that_have_adapters_are_together(shared: list[int]) -> None:
    model = attention(targets="qv")
    right = result(model)
    fuse(model, Kernels())
    assert distance(result(model), right) < 1e-5
    assert shared == [2]


def test_with_dropout_each_has_its_own_mask(shared: list[int]) -> None:
    model = attention(dropout=0.4)
    right = result(model)
    fuse(model, Kernels())
    assert distance(result(model), right) < 1e-5
    assert shared == []


def test_those_with_different_inputs_are_apart_from_then_on(shared: list[int]) -> None:
    model = attention()
    model.get_base_model().crossed = True
    right = result(model)
    fuse(model, Kernels())
    assert distance(result(model), right) < 1e-5
    assert distance(result(model), right) < 1e-5
    assert shared == [3], "the first call finds out"


def test_a_call_that_was_interrupted_leaves_nothing_behind(shared: list[int]) -> None:
    model = attention()
    right = result(model)
    fuse(model, Kernels())
    model.get_base_model().q_proj(torch.ones(1, WIDTH))
    assert distance(result(model), right) < 1e-5
    assert shared == [3, 3]


def test_without_the_adapter_the_base_alone_counts(shared: list[int]) -> None:
    model = attention()
    with model.disable_adapter():
        right = model(torch.ones(1, WIDTH))
        fuse(model, Kernels())
        assert torch.equal(model(torch.ones(1, WIDTH)), right)
    assert shared == []
