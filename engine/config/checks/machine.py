"""Checks of a configuration against the machine and against the model's architecture."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from ..fast_mode import MIXTURE_OF_EXPERTS, refusal, why_not_fast
from ..memory.hardware import Hardware
from ..schema import RunConfig
from ..sections.optimizers import OPTIMIZERS, base_key
from .budget import limit_without_power, no_power
from .problem import Problem
from .sharding import sharded_experts, sharded_vision


def check_hardware(config: RunConfig, hardware: Hardware) -> list[Problem]:
    """Return the settings that this machine does not support."""
    checks = (
        _check_devices,
        _check_precision,
        _check_attention,
        _check_graphs,
        _check_package,
        _check_power,
    )
    return [problem for check in checks for problem in check(config, hardware)]


def check_model(config: RunConfig, layers: int) -> list[Problem]:
    """Return a problem if `train.whole_layers` exceeds the layers of the model."""
    whole = config.train.whole_layers
    if whole <= layers:
        return []
    text = (
        f"got {whole}, but the model has {layers} layers; lower it, or set "
        "train.activation_checkpointing: false to keep the activations of all layers"
    )
    return [Problem("train.whole_layers", text)]


def check_experts(config: RunConfig) -> list[Problem]:
    """Return the settings that a mixture-of-experts model does not support."""
    found = list(sharded_experts(config))
    if config.train.fast == "on":
        found.append(Problem("train.fast", refusal(MIXTURE_OF_EXPERTS)))
    if config.train.streams:
        text = "got streamed, which does not support mixtures of experts; set lean"
        found.append(Problem("train.memory", text))
    return found


def check_vision(config: RunConfig) -> list[Problem]:
    """Return the settings that a vision-language model does not support."""
    found = list(sharded_vision(config))
    if config.train.lean:
        text = (
            f"got {config.train.memory}, which does not support vision-language models; set "
            "train.memory: plain"
        )
        found.append(Problem("train.memory", text))
    return found


def _check_devices(config: RunConfig, hardware: Hardware) -> Iterator[Problem]:
    if config.train.devices > hardware.count:
        unit = "GPU" if hardware.kind == "cuda" else "CPU core"
        found = f"{hardware.count} {unit}" + ("" if hardware.count == 1 else "s")
        yield Problem(
            "train.devices",
            f"got {config.train.devices}, but this machine offers {found}; lower it, or check "
            "CUDA_VISIBLE_DEVICES and `fttui doctor`",
        )


def _check_precision(config: RunConfig, hardware: Hardware) -> Iterator[Problem]:
    precision, adapter = config.model.precision, config.train.adapter_precision
    if precision == "fp16" and hardware.kind == "cpu":
        form = config.model.quantize
        quantized = f" ({form} included)" if form != "none" else ""
        yield Problem(
            "model.precision",
            f"got fp16, which cannot train on a CPU{quantized}, and no GPU was found; set auto or "
            "fp32",
        )
    if precision == "bf16" and not hardware.bf16:
        yield Problem(
            "model.precision",
            f"got bf16, which {_oldest(hardware)} does not support; set fp16, fp32 or auto",
        )
    if adapter == "bf16" and not hardware.bf16:
        yield Problem(
            "train.adapter_precision",
            f"got bf16, which {_oldest(hardware)} does not support; set fp32",
        )


def _oldest(hardware: Hardware) -> str:
    """Return the name of the first device without bf16; `this device` if none is listed."""
    return next((device.name for device in hardware.devices if not device.bf16), "this device")


def _check_graphs(config: RunConfig, hardware: Hardware) -> Iterator[Problem]:
    if config.train.fast == "on" and (reason := why_not_fast(config, hardware.kind)) is not None:
        yield Problem("train.fast", refusal(reason))


def _check_package(config: RunConfig, hardware: Hardware) -> Iterator[Problem]:
    name = config.train.base_optimizer
    library = OPTIMIZERS[name].library
    if library == "pytorch-optimizer" and find_spec("pytorch_optimizer") is None:
        yield Problem(
            base_key(config.train),
            f"{name} is in the package pytorch-optimizer, which is not installed; pip install "
            "'fttui[optimizers]', or choose adamw",
        )


def _check_attention(config: RunConfig, hardware: Hardware) -> Iterator[Problem]:
    if config.model.attention != "flash_attention_2":
        return
    if hardware.kind == "cpu":
        yield Problem(
            "model.attention", "got flash_attention_2, which needs a GPU; set auto or sdpa"
        )
    elif not hardware.flash_attention:
        yield Problem(
            "model.attention",
            "got flash_attention_2, but the flash-attn package is not installed; pip install "
            "flash-attn, or set auto",
        )


def _check_power(config: RunConfig, hardware: Hardware) -> Iterator[Problem]:
    """Yield a limit on energy for a CPU; of a GPU, training knows whether its power can be read."""
    key = limit_without_power(config)
    if key is not None and hardware.kind == "cpu":
        yield no_power(key, "no GPU was found, and the power of a CPU is not read")
