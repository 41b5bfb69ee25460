"""Streamed mode computes what lean mode computes, to the last bit."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fttui.engine.errors import ModelError
from fttui.engine.model import host_embedding, load
from fttui.engine.model.load import load_model
from fttui.engine.model.progress import ignore_progress
from fttui.engine.model.streaming.weights import make_streamed

from .....support.matrix import in_part
from .....support.tiny import tiny_llama
from ..test_host_embedding import gradients_of
from .late import LateCopies

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several slices in a vocabulary of 260: 100 rows of 32."""
    monkeypatch.setattr(host_embedding, "SLICE_ELEMENTS", 3200)


@pytest.fixture
def loaded(tmp_path: Path, configured: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Load a model of five layers in a mode of memory, with copies that come late."""
    folder = tiny_llama(tmp_path, layers=5, tied=False)
    late = partial(make_streamed, copies=LateCopies)
    monkeypatch.setattr(load, "make_streamed", late)

    def in_mode(memory: str, targets: Any, **train: Any) -> Any:
        config = configured(
            folder,
            model={"quantize": "nf4"},
            adapter={"dropout": 0.1, "targets": targets},
            train={"memory": memory, **train},
        )
        return load_model(config, CPU, ignore_progress)

    return in_mode


RECOMPUTED: dict[str, Any] = {"activation_checkpointing": True}
WAYS: dict[str, tuple[Any, dict[str, Any]]] = {
    "recomputed": ("all-linear", RECOMPUTED),
    "few adapters": (["gate_proj"], RECOMPUTED),
    "checkpoints on the host": (["q_proj"], {**RECOMPUTED, "activations": "host"}),
    "some whole": (["gate_proj"], {**RECOMPUTED, "whole_layers": 2}),
    "all whole": ("all-linear", {"activation_checkpointing": False}),
}
"""Modules with an adapter, and settings of training. A linear layer without an adapter is not
recomputed before its backward pass."""


@pytest.mark.parametrize("way", in_part(WAYS, ["few adapters", "some whole"]))
def test_losses_gradients_and_logits_are_those_of_lean_mode(loaded, way) -> None:
    targets, train = WAYS[way]
    found = []
    for memory in ("lean", "streamed"):
        torch.manual_seed(3)
        model = loaded(memory, targets, **train).model
        passes = [gradients_of(model) for _ in range(2)]
        model.eval()
        ids = torch.arange(40, 52).unsqueeze(0)
        with torch.no_grad():
            written = model.generate(input_ids=ids, max_new_tokens=4, do_sample=False)
            found.append((passes, model(input_ids=ids).logits, written))
    (lean, logits, written), (streamed, same_logits, same_text) = found
    for (loss, gradients), (same, others) in zip(lean, streamed, strict=True):
        assert loss == same
        assert gradients.keys() == others.keys()
        assert all(torch.equal(others[name], value) for name, value in gradients.items())
    assert torch.equal(logits, same_logits)
    assert torch.equal(written, same_text)


def test_streamed_weights_are_in_host_memory_and_named_in_a_fact(loaded) -> None:
    found = loaded("streamed", "all-linear", **RECOMPUTED)
    base = found.model.get_base_model()
    matrices = 5 * (4 * 32 * 32 - 2 * 32 * 16 + 3 * 32 * 64)
    assert base.streams.host_bytes >= 0.5 * (matrices + 260 * 32)
    addresses = {
        weight.data.untyped_storage().data_ptr()
        for name, weight in base.named_parameters()
        if "base_layer" in name
    }
    assert len(addresses) == 2, "five layers in two slots"
    assert "pass through" in found.facts["memory"]
    assert found.facts["memory"].startswith("streamed: embedding on the host, head in NF4 in 3")


def test_layers_without_weights_of_their_own_are_refused(loaded) -> None:
    base = loaded("lean", "all-linear").model.get_base_model()
    layers = base.model.layers
    with pytest.raises(ModelError, match=r"have none or share them\. Set train\.memory: lean"):
        make_streamed(base, [layers[0], layers[0]], CPU)
    with pytest.raises(ModelError, match="4-bit weights of their own"):
        make_streamed(base, [nn.Linear(2, 2)], CPU)
