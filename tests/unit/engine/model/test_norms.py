"""Slim norms give the same bits forward, and the gradient of the plain ones."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from fttui.engine.model.norms import slim_norms


def ends(norm: nn.Module, hidden: Tensor) -> tuple[Tensor, Tensor, int]:
    """Output, gradient and bytes kept."""
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() != hidden.data_ptr():
            kept[tensor.data_ptr()] = tensor.nbytes
        return tensor

    leaf = hidden.detach().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = norm(leaf)
    (output.float() ** 3).sum().backward()
    assert leaf.grad is not None
    return output.detach(), leaf.grad, sum(kept.values())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_slim_norm_is_the_plain_one_and_keeps_less(dtype) -> None:
    torch.manual_seed(0)
    norm = LlamaRMSNorm(64).to(dtype)
    norm.weight = nn.Parameter(torch.randn(64).to(dtype), requires_grad=False)
    hidden = torch.randn(50, 64).to(dtype)
    plain = ends(norm, hidden)
    assert slim_norms(nn.Sequential(norm)) == 1
    slim = ends(norm, hidden)
    assert torch.equal(slim[0], plain[0])
    scale = float(plain[1].float().norm())
    assert float((slim[1].float() - plain[1].float()).norm()) < 1e-3 * scale
    assert slim[2] < plain[2]


def test_a_norm_of_another_form_is_left_alone() -> None:
    assert (
        slim_norms(nn.Sequential(GemmaRMSNorm(64).half(), nn.LayerNorm(64), LlamaRMSNorm(64))) == 0
    )
