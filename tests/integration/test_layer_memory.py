"""The activations planned for each family are those that its layers of transformers keep.

Mixtures of experts are counted with experts in NF4, as bitsandbytes dequantizes them.

The models have published widths, but no memory: every tensor is on the meta device, and storages
are counted as a device's allocator would have to hold them.
"""

from __future__ import annotations

import sys
from typing import Any

import bitsandbytes
import msgspec
import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from fttui.engine.config.memory.activation_memory import MicroBatchShape
from fttui.engine.config.memory.architecture import read_architecture
from fttui.engine.config.schema import RunConfig
from fttui.engine.model.experts import quantize_experts
from tests.support.families import family_shape
from tests.support.matrix import in_part
from tests.support.storages import StorageCounter

TOKENS = 1024
DENSE = [
    "llama-3.2-1b",
    "qwen2.5-1.5b",
    "qwen3-1.7b",
    "gemma-2-2b",
    "gemma-3-1b",
    "phi-3-mini",
    "phi-4",
    "mistral-7b",
    "olmo-2-1b",
    "granite-3.3-2b",
    "smollm3-3b",
]
MIXTURES = [
    "mixtral-8x7b",
    "olmoe-1b-7b",
    "qwen1.5-moe-a2.7b",
    "qwen3-30b-a3b",
    "granite-3.1-3b-a800m",
]
KEPT = ["llama-3.2-1b", "gemma-2-2b"]
"""Families of each kind; the others are counted by `make test-long`."""
KEPT_MIXTURES = ["qwen1.5-moe-a2.7b"]
EAGER = ("gemma-2-2b",)


class FusedAttention(torch.autograd.Function):
    """Keeps what the fused kernels keep: inputs, output, and one fp32 number per head and token."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        batch, heads, tokens, _ = query.shape
        out = query.new_empty(batch, tokens, heads, value.shape[3]).transpose(1, 2)
        sums = query.new_empty(batch, heads, tokens, dtype=torch.float32)
        ctx.save_for_backward(query, key, value, out, sums)
        return out

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.empty_like(kept) for kept in ctx.saved_tensors[:3])


class Dropped(torch.autograd.Function):
    """Dropout as on a GPU, whose mask has one byte per element."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(torch.empty_like(x, dtype=torch.bool))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> Tensor:
        return torch.empty_like(outputs[0])


class FusedLoss(torch.autograd.Function):
    """Makes the gradient of the hidden states in the forward pass."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor) -> Tensor:
        ctx.save_for_backward(torch.empty_like(hidden))
        return hidden.new_empty(())

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Tensor:
        found: Tensor = ctx.saved_tensors[0] * 1.0
        return found


@pytest.fixture(autouse=True)
def kernels_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def attention(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Tensor:
        return FusedAttention.apply(query, key, value)

    def drop(layer: nn.Dropout, x: Tensor) -> Tensor:
        return Dropped.apply(x) if layer.training and layer.p else x

    # bitsandbytes keeps its first table of codes for the process; here it is on the meta device.
    monkeypatch.setattr(bitsandbytes.functional, "name2qmap", {})
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attention)
    monkeypatch.setattr(nn.Dropout, "forward", drop)


@pytest.fixture
def masks(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Give a model the masks that a full batch has: none for fused attention."""

    def masked(model: Any, *, eager: bool) -> None:
        def mask(*_: Any, **__: Any) -> Tensor | None:
            size = (1, 1, TOKENS, TOKENS)
            return torch.zeros(size, device="meta", dtype=torch.bfloat16) if eager else None

        code = sys.modules[type(model).__module__]
        for name in ("create_causal_mask", "create_sliding_window_causal_mask"):
            if hasattr(code, name):
                monkeypatch.setattr(code, name, mask)

    return masked


def counted_bytes(
    name: str, layers: int, masks: Any, *, dropout: float, recompute: bool, quantize: str = "none"
) -> int:
    """Return the peak of a forward and backward pass through the decoder layers."""
    attention = "eager" if name in EAGER else "sdpa"
    settings = AutoConfig.for_model(**family_shape(name, layers))
    with torch.device("meta"):
        base: Any = AutoModelForCausalLM.from_config(
            settings, dtype=torch.bfloat16, attn_implementation=attention
        )
    base.requires_grad_(False)
    if quantize != "none":
        quantize_experts(base, quantize, double_quant=True)
    targets: Any = list(read_architecture(family_shape(name)).linears)
    lora = LoraConfig(
        r=16, lora_dropout=dropout, target_modules=targets if name in MIXTURES else "all-linear"
    )
    model = get_peft_model(base, lora, autocast_adapter_dtype=False).train()
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(torch.bfloat16)
            parameter.grad = torch.zeros_like(parameter)
    if recompute:
        base.gradient_checkpointing_enable({"use_reentrant": False})
    base.get_input_embeddings().register_forward_hook(lambda *found: found[2].requires_grad_(True))
    masks(base, eager=attention == "eager")
    ids = torch.zeros(1, TOKENS, dtype=torch.long, device="meta")
    positions = torch.arange(TOKENS, device="meta")[None]
    with StorageCounter() as counter:
        hidden = base.model(input_ids=ids, position_ids=positions, use_cache=False)[0]
        FusedLoss.apply(hidden).backward()
    return counter.peak_bytes


def planned_bytes(
    name: str, layers: int, *, dropout: float, recompute: bool, quantize: str = "none"
) -> float:
    """Return the planned activations of the fullest moment within layers."""
    config = msgspec.convert(
        {
            "model": {"id": "m", "quantize": quantize},
            "data": {"train": "d", "max_length": TOKENS},
            "adapter": {"dropout": dropout},
            "train": {"steps": 1, "fast": "off", "activation_checkpointing": recompute},
        },
        RunConfig,
    )
    arch = read_architecture(family_shape(name, layers))
    shape = MicroBatchShape(config, arch, number=2, adapter=2, adapter_elements=0, sequences=1)
    return max(moment.activations for moment in shape._in_layers() if not moment.logits)


@pytest.mark.parametrize("name", in_part(DENSE, KEPT))
def test_a_layer_keeps_what_is_planned(name: str, masks: Any) -> None:
    """Layers that are not recomputed: what one more of them keeps, within 1 %."""
    few, more = (
        counted_bytes(name, layers, masks, dropout=0.05, recompute=False) for layers in (2, 3)
    )
    fewer, larger = (
        planned_bytes(name, layers, dropout=0.05, recompute=False) for layers in (2, 3)
    )
    assert larger - fewer == pytest.approx(more - few, rel=0.01)
    assert larger == pytest.approx(more, rel=0.05)


@pytest.mark.parametrize("name", in_part(DENSE, KEPT))
def test_the_peak_of_recomputed_layers_is_planned(name: str, masks: Any) -> None:
    counted = counted_bytes(name, 3, masks, dropout=0.0, recompute=True)
    assert planned_bytes(name, 3, dropout=0.0, recompute=True) == pytest.approx(counted, rel=0.04)


@pytest.mark.parametrize("name", in_part(MIXTURES, KEPT_MIXTURES))
def test_experts_keep_what_is_planned(name: str, masks: Any) -> None:
    """Dequantized experts of layers that are not recomputed stay until their backward pass."""
    few, more = (
        counted_bytes(name, layers, masks, dropout=0.05, recompute=False, quantize="nf4")
        for layers in (2, 3)
    )
    fewer, larger = (
        planned_bytes(name, layers, dropout=0.05, recompute=False, quantize="nf4")
        for layers in (2, 3)
    )
    assert larger - fewer == pytest.approx(more - few, rel=0.01)
    assert larger == pytest.approx(more, rel=0.02)


@pytest.mark.parametrize("name", in_part(MIXTURES, KEPT_MIXTURES))
@pytest.mark.parametrize("quantize", ["nf4", "none"])
def test_the_peak_of_recomputed_experts_is_planned(name: str, quantize: str, masks: Any) -> None:
    counted = counted_bytes(name, 3, masks, dropout=0.0, recompute=True, quantize=quantize)
    planned = planned_bytes(name, 3, dropout=0.0, recompute=True, quantize=quantize)
    assert planned == pytest.approx(counted, rel=0.04)


@pytest.mark.parametrize("name", MIXTURES)
def test_every_weight_of_a_mixture_is_planned(name: str) -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**family_shape(name, 2)))
    arch = read_architecture(family_shape(name, 2))
    planned = arch.linear_params + arch.expert_params + arch.other_params
    # Biases and the norms of queries and keys are not planned.
    assert planned == pytest.approx(model.num_parameters(), rel=1e-4)
