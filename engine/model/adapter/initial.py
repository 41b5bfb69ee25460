"""Initial weights of new adapters that depend on the base model or on the data."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from peft import EvaConfig, PeftModel, get_peft_model_state_dict, initialize_lora_eva_weights
from peft.tuners.lora import Linear4bit
from peft.utils.loftq_utils import _SafetensorLoader
from torch import Tensor

from ...errors import ModelError

CHANGES_BASE = frozenset({"pissa", "olora"})
"""Initializations that subtract the initial adapter from the weights of the base model."""


def init_arguments(init: str) -> dict[str, Any]:
    """Return the arguments of peft's LoraConfig for a value of `adapter.init`."""
    if init == "eva":
        # Ranks are not moved between modules, so that the shape of an adapter depends on its
        # configuration alone.
        return {"init_lora_weights": "eva", "eva_config": EvaConfig(rho=1.0)}
    return {"init_lora_weights": True if init in ("default", "loftq") else init}


def initial_weights(model: PeftModel) -> dict[str, Tensor]:
    """Return copies of the adapter weights on the host, by the names that PEFT saves."""
    saved = get_peft_model_state_dict(model, save_embedding_layers=False)
    return {name: weight.detach().to("cpu", copy=True) for name, weight in saved.items()}


@torch.no_grad()
def initialize_loftq(model: PeftModel, source: str, revision: str | None) -> None:
    """Let the adapter of each NF4 layer begin with the largest part of its quantization error.

    The error of a layer is approximated by a matrix of the adapter's rank, so that base and adapter
    together are as close to the unquantized weights as that rank permits.

    Args:
        model: A model in NF4 with a new adapter.
        source: Folder or hub id with the unquantized weights, as safetensors.
        revision: Revision on the hub.

    Raises:
        ModelError: The unquantized weights cannot be read, or no layer is in NF4.

    Source: Li et al. 2023 (LoftQ), with one iteration.
    """
    folder = source
    if not Path(source).is_dir():
        folder = snapshot_download(source, revision=revision, local_files_only=True)
    changed = 0
    for name, module in model.named_modules():
        if isinstance(module, Linear4bit):
            path = _weights_path(Path(folder))
            try:
                whole = _SafetensorLoader(model, path).get_tensor(
                    f"{name.removeprefix('base_model.model.')}.weight"
                )
            except Exception as error:
                raise ModelError(
                    f"adapter.init: loftq needs the unquantized weights of {name} as safetensors, "
                    f"which cannot be read in {folder}: {type(error).__name__}: {error}. "
                    f"Set adapter.init: default."
                ) from error
            _begin_with_error(module, whole)
            changed += 1
    if not changed:
        raise ModelError(
            "adapter.init: loftq reduces the error of NF4 layers, but no layer with an adapter is "
            "in NF4. Set adapter.init: default."
        )


def _weights_path(folder: Path) -> str:
    index = folder / "model.safetensors.index.json"
    return str(index if index.is_file() else folder / "model.safetensors")


def _begin_with_error(module: Any, whole: Tensor) -> None:
    import bitsandbytes.functional as bnb

    weight, rank = module.weight, module.r["default"]
    packed = bnb.dequantize_4bit(weight.data, weight.quant_state).float()
    error = (whole.to(packed.device, torch.float32) - packed) / module.scaling["default"]
    left, sizes, right = torch.linalg.svd(error, full_matrices=False)
    roots = sizes[:rank].sqrt()
    module.lora_A["default"].weight.copy_(roots[:, None] * right[:rank])
    module.lora_B["default"].weight.copy_(left[:, :rank] * roots)


def initialize_eva(model: PeftModel, batches: Iterable[dict[str, Tensor]]) -> None:
    """Let the A matrices of an adapter begin with the main directions of their layers' inputs.

    Args:
        model: A model with a new adapter, attached with `adapter.init: eva`.
        batches: Batches with `input_ids`, `attention_mask` and `labels`, on the device.

    Raises:
        ModelError: PEFT cannot compute the directions from these batches.

    Source: Paischer et al. 2024 (EVA), by peft.
    """
    was_training = model.training
    model.eval()
    try:
        initialize_lora_eva_weights(
            model,
            list(batches),
            forward_fn=lambda model, inputs: model(
                input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]
            ),
            gather_distributed_inputs=False,
            show_progress_bar=False,
        )
    except ValueError as error:
        raise ModelError(f"adapter.init: eva failed: {error}. Set adapter.init: default.") from None
    finally:
        model.train(was_training)
