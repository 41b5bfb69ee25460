"""The quantization of a base model: applied while it is loaded, or stored with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AwqConfig,
    BitsAndBytesConfig,
    CompressedTensorsConfig,
    FineGrainedFP8Config,
    GPTQConfig,
    Mxfp4Config,
)
from transformers.quantizers.base import get_keys_to_not_convert
from transformers.utils.quantization_config import QuantizationMethod

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


_AT_ONCE = 1 << 18
"""Values that are sorted into buckets at once, so that the temporary tensors stay in the cache."""


@contextmanager
def quick_buckets() -> Iterator[None]:
    """Within the block, let `torch.bucketize` read a table where that gives the same result.

    bitsandbytes finds the 4-bit code of each weight on a CPU with it, by a binary search, which was
    half of the time to load a small model. Whatever the table does not cover is searched as before.
    """
    search: Callable[..., Tensor] = torch.bucketize
    tables: dict[bytes, tuple[Tensor, Tensor] | None] = {}

    def bucketize(values: Any, bounds: Any, **options: Any) -> Tensor:
        if not _may_read_table(values, bounds, options):
            return search(values, bounds, **options)
        key = bounds.numpy().tobytes()
        if key not in tables:
            tables[key] = _bucket_table(bounds)
        table = tables[key]
        if table is None or not bool(values.sum().isfinite()):
            return search(values, bounds, **options)
        found = _read_buckets(values, *table)
        return found if options.get("out_int32") else found.long()

    torch.bucketize = bucketize  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.bucketize = search


def _may_read_table(values: Any, bounds: Any, options: Mapping[str, Any]) -> bool:
    """Return whether these are arguments that a table can answer, apart from their numbers."""
    return (
        options.keys() <= {"out_int32"}
        and isinstance(values, torch.Tensor)
        and isinstance(bounds, torch.Tensor)
        and all(one.device.type == "cpu" and one.dtype == torch.float32 for one in (values, bounds))
        and values.dim() == bounds.dim() == 1
        and values.is_contiguous()
        and 0 < len(bounds) < len(values)
    )


def _bucket_table(bounds: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return, for the upper 16 bits of a finite number, its least bucket and the bound above it.

    The bound is infinite where all numbers with these bits are in one bucket.

    Args:
        bounds: ascending, [n] fp32.

    Returns:
        Buckets [65536] int32 and bounds [65536] fp32; None if two bounds share their upper bits.
    """
    bits = torch.arange(1 << 16, dtype=torch.int32) << 16
    ends = torch.stack([bits, bits | 0xFFFF]).view(torch.float32)
    ends[:, ~ends[0].isfinite()] = 0.0  # never read
    buckets = torch.bucketize(ends, bounds, out_int32=True).sort(dim=0).values
    least, greatest = buckets
    if int((greatest - least).max()) > 1:
        return None
    limits = torch.full([1 << 16], torch.inf)
    split = greatest > least
    limits[split] = bounds[least[split]]
    return least, limits


def _read_buckets(values: Tensor, buckets: Tensor, limits: Tensor) -> Tensor:
    """Return the bucket of each of the finite `values`, [n] fp32, as int32 [n]."""
    found = torch.empty(len(values), dtype=torch.int32)
    for first in range(0, len(values), _AT_ONCE):
        part = values[first : first + _AT_ONCE]
        upper = (part.view(torch.int32) >> 16).bitwise_and_(0xFFFF)
        out = found[first : first + _AT_ONCE]
        torch.index_select(buckets, 0, upper, out=out)
        out.add_(part > limits.index_select(0, upper))
    return found


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
    if stored := _stored_quantization(config, settings):
        return _dequantizing(stored) if method_of(stored) in DEQUANTIZED else None
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


def _stored_quantization(config: RunConfig, settings: Any) -> Mapping[str, Any] | None:
    """Return the form in which the weights are stored quantized; None if they are not.

    Raises:
        ModelError: Weights in this form cannot be trained, or not with this configuration.
    """
    found = settings.to_dict()
    problem = next(check_quantized(config, found), None)
    if problem is not None:
        raise ModelError(f"{problem.key}: {problem.text}.")
    return stored_quantization(found)


def _dequantizing(stored: Mapping[str, Any]) -> Any:
    """Return the configuration that dequantizes stored weights while they are loaded."""
    method = method_of(stored)
    if method == "fp8":
        return FineGrainedFP8Config(dequantize=True)
    if method == "mxfp4":
        return Mxfp4Config(dequantize=True)
    bits = int(stored.get("bits") or 4)
    # Other kernels repack the weights; `dequantize_layers` reads them.
    if method == "gptq":
        return GPTQConfig(bits=bits, backend="torch")
    if method == "awq":
        return AwqConfig(bits=bits, backend="torch_awq")
    return CompressedTensorsConfig(dequantize=True)


def loading_dtype(quantization: Any, dtype: torch.dtype) -> torch.dtype:
    """Return the dtype to load in, for weights that are wanted in a dtype.

    AWQ weights are loaded in fp32: on a GPU transformers would take fp16 instead of bf16.
    """
    return torch.float32 if isinstance(quantization, AwqConfig) else dtype


def dequantize_layers(base: Any, dtype: torch.dtype) -> None:
    """Replace layers that compute with GPTQ or AWQ weights by plain ones in a dtype, in place.

    transformers dequantizes the other forms itself.
    """
    method = getattr(base, "quantization_method", None)
    if method not in (QuantizationMethod.GPTQ, QuantizationMethod.AWQ):
        return
    from gptqmodel.nn_modules.qlinear import BaseQuantLinear

    # The package compiles what is called here once for each layer, which takes seconds each time.
    with torch.compiler.set_stance("force_eager"):
        for name, module in list(base.named_modules()):
            if isinstance(module, BaseQuantLinear):
                base.set_submodule(name, _plain_layer(module, dtype))
    base.hf_quantizer.remove_quantization_config(base)
    if method == QuantizationMethod.AWQ:
        _cast(base, dtype)


def _cast(base: Any, dtype: torch.dtype) -> None:
    """Convert the weights of a model that was loaded in fp32, except those that stay in it.

    The configuration of the model gets the dtype as well.
    """
    wide = set(base._keep_in_fp32_modules_strict or ())
    if dtype == torch.float16:
        wide |= set(base._keep_in_fp32_modules or ())
    for name, weight in base.named_parameters():
        if not any(part in wide for part in name.split(".")):
            weight.data = weight.data.to(dtype)
    base.config.dtype = dtype


@torch.no_grad()
def _plain_layer(layer: Any, dtype: torch.dtype) -> nn.Linear:
    """Return the linear layer with the weights of a quantized one.

    Its outputs for the unit vectors are its weights, exactly: every other product is 0. The bias is
    taken out of the quantized layer.
    """
    bias, layer.bias = layer.bias, None
    device = layer.qweight.device
    weight = layer(torch.eye(layer.in_features, dtype=torch.float32, device=device)).T
    plain = nn.Linear(layer.in_features, layer.out_features, bias=bias is not None, device="meta")
    plain.weight = nn.Parameter(weight.to(dtype).contiguous(), requires_grad=False)
    if bias is not None:
        plain.bias = nn.Parameter(bias.to(dtype), requires_grad=False)
    return plain


def form_of(base: Any) -> str | None:
    """Return the bitsandbytes format of a model's weights, such as NF4; None if it has none."""
    if getattr(base, "is_loaded_in_8bit", False):
        return "INT8"
    if not getattr(base, "is_loaded_in_4bit", False):
        return None
    return str(base.config.quantization_config.bnb_4bit_quant_type).upper()
