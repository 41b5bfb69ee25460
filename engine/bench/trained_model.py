"""Loads the base model of a run, and then puts the weights of a checkpoint on it."""

from __future__ import annotations

import json
from typing import Any

import safetensors.torch
import torch
from msgspec.structs import replace
from peft import PeftConfig, PeftModel, get_peft_model, set_peft_model_state_dict
from transformers import AutoConfig

from ..config.schema import RunConfig
from ..errors import CheckpointError, ModelError
from ..export.checkpoint import TrainedFiles
from ..model.files.weight_bytes import weight_bytes
from ..model.load import load_model
from ..model.precision import compute_dtype
from ..model.progress import Progress
from ..model.tokenizer import hub_arguments, resolve_model
from ..telemetry.gpu import GpuSampler
from .device import Gpu


def measuring(config: RunConfig, device: str) -> RunConfig:
    """Return the configuration with which the base model is loaded to be measured.

    It is quantized and computes as in training. What changes the base only for training is left
    out: lean mode, the initialization of the adapter, sharding, recomputed activations.
    """
    attention = "auto" if device == "cpu" else config.model.attention
    model = replace(config.model, attention=attention)
    train = replace(
        config.train,
        activation_checkpointing=False,
        activations="device",
        memory="plain",
        strategy="ddp",
    )
    adapter = replace(config.adapter, init="default")
    if adapter.continues:  # the checkpoint holds all of its weights
        adapter = replace(adapter, start=None)
    return replace(config, model=model, train=train, adapter=adapter)


def visible_gpus() -> list[Gpu]:
    """Return the GPUs of this process with their free memory, without taking any of it."""
    return [_gpu(index) for index in range(torch.cuda.device_count())]


def _gpu(index: int) -> Gpu:
    found = GpuSampler(index).sample()
    if found.total_bytes is None or found.used_bytes is None:
        return Gpu(index, None)
    return Gpu(index, found.total_bytes - found.used_bytes, found.used_bytes)


def size_of_weights(config: RunConfig, progress: Progress) -> int | None:
    """Return the bytes of the base model on a GPU; None if its files do not show it."""
    source = resolve_model(config.model, progress)
    settings = AutoConfig.from_pretrained(source, **hub_arguments(config.model)).to_dict()
    found = weight_bytes(
        source,
        config.model.revision,
        settings,
        quantize=config.model.quantize,
        double_quant=config.model.double_quant,
        number=4 if config.model.precision == "fp32" else 2,
    )
    return None if found is None else found.loading


class MeasuredModel:
    """The base model of a run, and the model with the weights of one checkpoint."""

    def __init__(self, config: RunConfig, device: str, progress: Progress) -> None:
        """Load the base model.

        Raises:
            ConfigError: the configuration does not agree with the model.
            ModelError: the model is missing, or does not fit in memory.
        """
        place = torch.device(device)
        loaded = load_model(measuring(config, device), place, progress)
        self.tokenizer = loaded.tokenizer
        self._dtype = compute_dtype(config.model.precision, place)
        model = loaded.model
        self.base: Any = model.unload() if isinstance(model, PeftModel) else model
        self.base.config.use_cache = True
        self.base.eval()

    def with_weights(self, files: TrainedFiles) -> Any:
        """Put the weights of a checkpoint on the base model and return the result.

        The base alone is lost where the weights of the model itself were trained.

        Raises:
            CheckpointError: the weights are not those of this model.
        """
        trained = safetensors.torch.load(files.weights)
        settings = json.loads(files.settings)
        model = self._adapted(trained, settings) if settings else self._replaced(trained)
        name = files.manifest.name
        if model is None:
            raise CheckpointError(
                f"checkpoint {name} does not hold the weights of this model; use the base model of "
                "the run"
            )
        model.eval()
        return model

    def _adapted(self, trained: dict[str, torch.Tensor], settings: dict[str, Any]) -> Any:
        adapter: Any = PeftConfig.from_peft_type(**settings)
        adapter.inference_mode = True
        model: Any = get_peft_model(self.base, adapter)
        found = set_peft_model_state_dict(model, trained)
        # The base weights are missing, because a checkpoint holds those of the adapter only.
        return None if found.unexpected_keys else model

    def _replaced(self, trained: dict[str, torch.Tensor]) -> Any:
        found = self.base.load_state_dict(trained, strict=False)
        return None if found.unexpected_keys else self.base


def out_of_memory(device: str, batch: int) -> ModelError:
    """Return the error for a device whose memory did not suffice."""
    return ModelError(
        f"{device} is out of memory with {batch} sequences at once; use a smaller --batch, another "
        "--device, or pause the run with `pause release`, which frees its memory"
    )
