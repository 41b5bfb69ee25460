"""Number formats of the computation and of the adapters."""

from __future__ import annotations

import torch

from ..errors import ModelError

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def compute_dtype(precision: str, device: torch.device) -> torch.dtype:
    """Return the dtype of unquantized weights and of the arithmetic.

    `auto` is bf16 if the CUDA device supports it in hardware, otherwise fp32: bf16 on a CPU is
    slower than fp32, and fp16 needs loss scaling to be safe.

    Raises:
        ModelError: The device does not support this precision.
    """
    native_bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    if precision == "auto":
        return torch.bfloat16 if native_bf16 else torch.float32
    if precision == "fp16" and device.type != "cuda":
        raise ModelError(
            f"model.precision: got fp16, which needs a CUDA device, but this is {device}. "
            f"Set model.precision: auto."
        )
    if precision == "bf16" and device.type == "cuda" and not native_bf16:
        name = torch.cuda.get_device_name(device)
        raise ModelError(
            f"model.precision: got bf16, which {name} does not support. "
            f"Set model.precision: auto (fp32) or fp16."
        )
    return _DTYPES[precision]


def adapter_dtype(
    precision: str, quantize: str, compute: torch.dtype, device: torch.device
) -> torch.dtype:
    """Return the dtype of the adapter weights, in which they are optimized.

    `auto` is bf16 for 4-bit models computing in bf16 on a GPU, where it halves adapters, gradients
    and optimizer state, and fp32 otherwise.
    """
    if precision != "auto":
        return _DTYPES[precision]
    compact = device.type == "cuda" and quantize in ("nf4", "fp4") and compute == torch.bfloat16
    return torch.bfloat16 if compact else torch.float32


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype in the configuration, such as `bf16`, or else its torch name."""
    return next((name for name, known in _DTYPES.items() if known == dtype), str(dtype))
