"""The number formats of weights in a GGUF file, and who can write each of them."""

from __future__ import annotations

from typing import Literal, get_args

DirectType = Literal["f32", "f16", "bf16", "q8_0"]
"""Formats that fttui writes itself, with the package gguf."""
DIRECT: tuple[str, ...] = get_args(DirectType)
LLAMA_CPP: tuple[str, ...] = (
    "q2_k",
    "q3_k_s",
    "q3_k_m",
    "q3_k_l",
    "q4_0",
    "q4_k_s",
    "q4_k_m",
    "q5_0",
    "q5_k_s",
    "q5_k_m",
    "q6_k",
    "iq4_nl",
    "iq4_xs",
)
"""Formats that only the program llama-quantize writes."""
TYPES = DIRECT + LLAMA_CPP
