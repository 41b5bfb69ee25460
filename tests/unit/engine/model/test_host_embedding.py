"""Lean mode computes what the plain model computes with the same numbers in its head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from bitsandbytes.functional import dequantize_4bit
from torch import Tensor, nn

from fttui.engine.errors import ModelError
from fttui.engine.losses.cross_entropy import selected_cross_entropy
from fttui.engine.model import host_embedding
from fttui.engine.model.hidden import HiddenStates, lm_head_of
from fttui.engine.model.host_embedding import (
    HostEmbedding,
    QuantizedHead,
    ends_on_host,
    keep_on_host,
    make_lean,
)
from fttui.engine.model.load import load_model, weights_bytes
from fttui.engine.model.progress import ignore_progress

from ....support.tiny import tiny_llama

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several slices in a vocabulary of 260: 100 rows of 32."""
    monkeypatch.setattr(host_embedding, "SLICE_ELEMENTS", 3200)


def train_of(memory: str, activations: str = "auto") -> dict[str, Any]:
    return {"memory": memory, "activations": activations}


def gradients_of(model: Any) -> tuple[float, dict[str, Tensor]]:
    """Loss and adapter gradients of one batch; B is random, so that A has a gradient too."""
    ids = torch.randint(0, 260, (2, 24), generator=torch.Generator().manual_seed(5))
    labels = ids.clone()
    labels[0, :9] = -100
    generator = torch.Generator().manual_seed(6)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.02, generator=generator)
    model.train()
    with HiddenStates(model) as hidden:
        model(input_ids=ids, attention_mask=torch.ones_like(ids), logits_to_keep=1)
        loss, count = selected_cross_entropy(hidden.take(), labels, lm_head_of(model))
    (loss / count).backward()
    found = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return float(loss.detach() / count), found


def with_head_of(plain: Any, lean_model: Any) -> None:
    """Give a plain model the numbers that the lean one's head holds."""
    head = lean_model.get_output_embeddings()
    weight = torch.cat([dequantize_4bit(p.data, p.quant_state) for p in head.packed])
    new = nn.Linear(head.in_features, head.out_features, bias=False)
    new.weight = nn.Parameter(weight, requires_grad=False)
    plain.set_output_embeddings(new)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("activations", ["device", "host"])
def test_loss_and_gradients_are_the_plain_ones(tmp_path, configured, tied, activations) -> None:
    folder = tiny_llama(tmp_path, tied=tied)
    sections = {"model": {"quantize": "nf4"}, "adapter": {"dropout": 0.0}}
    lean_model, plain = (
        load_model(
            configured(folder, train=train_of(*kind), **sections), CPU, ignore_progress
        ).model
        for kind in (("lean", activations), ("plain",))
    )
    with_head_of(plain.get_base_model(), lean_model.get_base_model())
    loss, found = gradients_of(lean_model)
    expected, wanted = gradients_of(plain)
    assert loss == pytest.approx(expected, rel=1e-6)
    assert found.keys() == wanted.keys()
    assert len(found) == 28
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-7)


def test_the_ends_take_a_quarter_and_none_of_the_device(tmp_path, configured) -> None:
    folder = tiny_llama(tmp_path, tied=False)
    loaded = {
        memory: load_model(
            configured(folder, model={"quantize": "nf4"}, train=train_of(memory)),
            CPU,
            ignore_progress,
        )
        for memory in ("lean", "plain")
    }
    model = loaded["lean"].model
    base: Any = model.get_base_model()
    assert isinstance(base.get_input_embeddings(), HostEmbedding)
    assert isinstance(base.get_output_embeddings(), QuantizedHead)
    assert len(base.get_output_embeddings().packed) == 3
    assert "in 3 slices" in loaded["lean"].facts["memory"]
    elements = 260 * 32
    spared = weights_bytes(loaded["plain"].model) - weights_bytes(model)
    tables = 3 * (64 + 1024 + 4)
    assert spared == pytest.approx(2 * 4 * elements - 0.516 * elements - tables, abs=300)
    assert not any("embed" in name for name, _ in model.named_parameters())
    assert not any("lm_head" in name for name, p in model.named_parameters() if p.requires_grad)


def test_generation_sees_the_whole_vocabulary(tmp_path, configured) -> None:
    config = configured(
        tiny_llama(tmp_path), model={"quantize": "nf4"}, train=train_of("lean", "host")
    )
    model: Any = load_model(config, CPU, ignore_progress).model.eval()
    ids = torch.arange(40, 52).unsqueeze(0)
    assert model(input_ids=ids).logits.shape == (1, 12, 260)
    written = model.generate(input_ids=ids, max_new_tokens=5, do_sample=False)
    assert written.shape == (1, 17)


@pytest.mark.parametrize("bias", [False, True])
def test_a_head_is_its_matrix_up_to_four_bits(bias) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(32, 260, bias=bias)
    head = QuantizedHead(linear.weight, linear.bias, CPU)
    states = torch.randn(5, 32)
    exact, got = linear(states), head(states)
    assert got.shape == exact.shape
    assert (got - exact).norm() / exact.norm() < 0.15
    assert [len(part.weight) for part in head.slices()] == [100, 100, 60]


def test_a_scaled_embedding_stays_scaled() -> None:
    class Scaled(nn.Embedding):
        def forward(self, ids: Tensor) -> Tensor:
            return super().forward(ids) * 8.0

    table = Scaled(10, 4)
    ids = torch.tensor([[1, 2, 9]])
    assert torch.equal(HostEmbedding(table, CPU)(ids), table(ids))


def test_a_batch_is_looked_up_without_asking_the_device_for_it() -> None:
    ids, table = torch.tensor([[3, 1, 2]]), nn.Embedding(5, 4)
    elsewhere = keep_on_host(ids.to("meta"), ids)  # whose values nobody can read
    assert torch.equal(HostEmbedding(table, CPU)(elsewhere), table(ids))


def test_unknown_ends_are_refused() -> None:
    class Strange(nn.Module):
        def get_input_embeddings(self) -> nn.Module:
            return nn.Linear(2, 2)

        def get_output_embeddings(self) -> nn.Module:
            return nn.Linear(2, 2)

    with pytest.raises(
        ModelError, match=r"input embedding .* is a Linear. Set train.memory: plain"
    ):
        make_lean(Strange(), CPU)


def test_the_ends_are_found_by_what_they_are(tmp_path: Path) -> None:
    from transformers import AutoConfig

    settings = AutoConfig.from_pretrained(tiny_llama(tmp_path))
    gpu = torch.device("cuda", 0)
    assert ends_on_host(settings, gpu) == {
        "model.embed_tokens": "cpu",
        "model.layers": gpu,
        "model.norm": gpu,
        "model.rotary_emb": gpu,
        "lm_head": "cpu",
    }, "no name above an end, which would take it along"
