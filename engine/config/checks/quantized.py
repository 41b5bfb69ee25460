"""Checks of a model whose weights are stored quantized, from its config.json alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

from ..schema import RunConfig
from .problem import Problem

DEQUANTIZED = {
    "fp8": "FP8",
    "mxfp4": "MXFP4",
    "compressed-tensors": "compressed-tensors",
    "gptq": "GPTQ",
    "awq": "AWQ",
}
"""Methods whose weights are dequantized while the model is loaded, with their names."""
_PACKAGES = {
    "compressed-tensors": {"compressed-tensors": "compressed_tensors"},
    "gptq": {"gptqmodel": "gptqmodel", "optimum": "optimum"},
    "awq": {"gptqmodel": "gptqmodel"},
}
"""Packages that a method needs, with the names of their modules."""
_BITSANDBYTES = ("bitsandbytes", "bitsandbytes_4bit", "bitsandbytes_8bit")


def stored_quantization(settings: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the quantization in a parsed config.json; None if the weights are not quantized."""
    text = settings.get("text_config") or {}
    found = settings.get("quantization_config") or text.get("quantization_config")
    return found if isinstance(found, Mapping) else None


def method_of(stored: Mapping[str, Any]) -> str:
    """Return the method of a stored quantization, such as `gptq`; `an unknown method` if unnamed.

    All variants of bitsandbytes are called `bitsandbytes`.
    """
    named = str(stored.get("quant_method") or "").lower()
    if not named and (stored.get("load_in_4bit") or stored.get("load_in_8bit")):
        return "bitsandbytes"
    return "bitsandbytes" if named in _BITSANDBYTES else named or "an unknown method"


def stored_form(stored: Mapping[str, Any]) -> str:
    """Return the value of `model.quantize` that a bitsandbytes quantization corresponds to."""
    if stored.get("load_in_8bit"):
        return "int8"
    return "fp4" if stored.get("bnb_4bit_quant_type") == "fp4" else "nf4"


def check_quantized(config: RunConfig, settings: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield why a model whose weights are stored quantized cannot be trained as configured.

    The method is not supported, `model.quantize` contradicts it, or a package is missing. A model
    whose weights are not stored quantized has no such problems.

    Args:
        config: The run.
        settings: The parsed config.json of the model.
    """
    stored = stored_quantization(settings)
    if stored is None:
        return
    name, method, asked = config.model.id, method_of(stored), config.model.quantize
    if config.train.shards:
        yield Problem(
            "model.id",
            f"{name} is already quantized with {method}, which train.strategy: fsdp cannot split; "
            "use its unquantized variant, which model.quantize: nf4 quantizes while it is loaded, "
            "or train.strategy: ddp",
        )
        return
    if method == "bitsandbytes":
        form = stored_form(stored)
        if asked != form:
            yield Problem(
                "model.quantize",
                f"got {asked}, but {name} is already quantized to {form}; set model.quantize: "
                f"{form}, or use its unquantized variant",
            )
    elif method in DEQUANTIZED:
        yield from _dequantized(name, method, asked)
    else:
        yield Problem(
            "model.id",
            f"{name} is already quantized with {method}, on which fttui does not train adapters; "
            "use its unquantized variant, which model.quantize: nf4 quantizes while it is loaded",
        )


def _dequantized(name: str, method: str, asked: str) -> Iterator[Problem]:
    needed = _PACKAGES.get(method, {})
    missing = [package for package, module in needed.items() if find_spec(module) is None]
    if missing:
        unit = "package" if len(missing) == 1 else "packages"
        yield Problem(
            "model.id",
            f"{name} is quantized with {method}, which needs the {unit} {' and '.join(missing)}; "
            f"pip install {' '.join(missing)}, or use its unquantized variant",
        )
    if asked != "none":
        yield Problem(
            "model.quantize",
            f"got {asked}, but the {DEQUANTIZED[method]} weights of {name} are dequantized while "
            "they are loaded, and cannot be quantized again; set model.quantize: none, which needs "
            "the memory of unquantized weights, or use its unquantized variant",
        )
