"""The bytes of weights that headers give are those that a loaded model holds."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
import torch

from fttui.engine.config.schema import RunConfig
from fttui.engine.model.files.weight_bytes import weight_bytes
from fttui.engine.model.load import load_model, weights_bytes
from fttui.engine.model.progress import ignore_progress

from .....support.architectures import tiny_model

LARGER = {"hidden_size": 256, "num_hidden_layers": 3}
FAMILIES = {
    "mixtral": {"intermediate_size": 512},
    "qwen3_moe": {"moe_intermediate_size": 256},
    "granitemoe": {"intermediate_size": 512},
    "llama": {"intermediate_size": 512},
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("quantize", ["none", "nf4", "int8"])
def test_headers_give_the_bytes_of_the_loaded_weights(
    tmp_path: Path, family: str, quantize: str
) -> None:
    folder = tiny_model(family, tmp_path, **LARGER, **FAMILIES[family])
    settings = json.loads((folder / "config.json").read_text())
    found = weight_bytes(
        str(folder), None, settings, quantize=quantize, double_quant=True, number=4
    )
    raw = {
        "model": {"id": str(folder), "quantize": quantize},
        "data": {"train": "x"},
        "train": {"steps": 1},
        "adapter": {"r": 1, "targets": ["q_proj"]},
    }
    config = msgspec.convert(raw, RunConfig)
    model = load_model(config, torch.device("cpu"), ignore_progress).model
    adapters = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    held = weights_bytes(model.get_base_model()) - adapters
    assert found is not None
    assert found.held == pytest.approx(held, rel=0.03)
    assert found.loading >= found.held
