"""The quantization of a base model: applied while it is loaded, or stored with it."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    BitsAndBytesConfig,
    CompressedTensorsConfig,
    FineGrainedFP8Config,
    Mxfp4Config,
)
from transformers.quantizers.base import get_keys_to_not_convert

from ..config.checks import check_quantized, stored_quantization
from ..config.checks.quantized import DEQUANTIZED, method_of
from ..config.schema import RunConfig
from ..errors import ModelError
from .adapter.attach import unquantized_layers
from .experts import router_layers
from .host_embedding import skeleton_of
from .vision import beside_language_model, sees_images

_RESCALED = frozenset({"rwkv"})
"""Model types that change their frozen weights when they switch between training and evaluation."""


def quantization_of(config: RunConfig, settings: Any, dtype: torch.dtype) -> Any:
    """Return the quantization to apply; None if the weights are loaded unchanged.

    Raises:
        ModelError: The model is an encoder-decoder, is stored in a quantized form that cannot be
            trained, or cannot be quantized.
    """
    model = config.model
    if getattr(settings, "is_encoder_decoder", False):
        raise ModelError(
            f"{model.id} is an encoder-decoder ({settings.model_type}), but fttui trains "
            f"decoder-only language models. Choose a causal language model."
        )
    if method := _stored_quant_method(config, settings):
        return _dequantizing(method) if method in DEQUANTIZED else None
    if model.quantize == "none":
        return None
    if settings.model_type in _RESCALED:
        raise ModelError(
            f"{model.id} is of type {settings.model_type}, whose code rescales its weights while "
            f"it runs, so they cannot be quantized. Set model.quantize: none."
        )
    skeleton = skeleton_of(settings, trust_remote_code=model.trust_remote_code)
    kept = [*unquantized_layers(skeleton), *router_layers(skeleton)]
    kept += beside_language_model(skeleton) if sees_images(settings) else []
    skipped = [*get_keys_to_not_convert(skeleton), *kept] if kept else None
    if model.quantize == "int8":
        return BitsAndBytesConfig(llm_int8_skip_modules=skipped, load_in_8bit=True)
    return BitsAndBytesConfig(
        llm_int8_skip_modules=skipped,
        load_in_4bit=True,
        bnb_4bit_quant_type=model.quantize,
        bnb_4bit_use_double_quant=model.double_quant,
        bnb_4bit_compute_dtype=dtype,
    )


def _stored_quant_method(config: RunConfig, settings: Any) -> str | None:
    """Return the method by which the weights are stored quantized; None if they are not.

    Raises:
        ModelError: Weights in this form cannot be trained, or not with this configuration.
    """
    found = settings.to_dict()
    problem = next(check_quantized(config, found), None)
    if problem is not None:
        raise ModelError(f"{problem.key}: {problem.text}.")
    stored = stored_quantization(found)
    return None if stored is None else method_of(stored)


def _dequantizing(method: str) -> Any:
    """Return the configuration that dequantizes stored weights while they are loaded."""
    if method == "fp8":
        return FineGrainedFP8Config(dequantize=True)
    if method == "mxfp4":
        return Mxfp4Config(dequantize=True)
    return CompressedTensorsConfig(dequantize=True)


def form_of(base: Any) -> str | None:
    """Return the format of a model's quantized weights, such as NF4; None if it has none."""
    if getattr(base, "is_loaded_in_8bit", False):
        return "INT8"
    if not getattr(base, "is_loaded_in_4bit", False):
        return None
    return str(base.config.quantization_config.bnb_4bit_quant_type).upper()
