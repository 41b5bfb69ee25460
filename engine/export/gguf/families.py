"""The families of models whose layout in a GGUF file is known here."""

from __future__ import annotations

from typing import Any

FAMILIES = {"llama": "LLAMA", "mistral": "LLAMA", "qwen2": "QWEN2", "qwen3": "QWEN3"}
"""Architecture in GGUF of each model_type of transformers that can be written here."""


def unsupported(settings: dict[str, Any]) -> str | None:
    """Return why a model with this config.json cannot be written here; None if it can."""
    family = settings.get("model_type")
    if family not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        return f"the model is of the type {family}; fttui itself writes {known}"
    rope = rope_parameters(settings)
    if rope["rope_type"] not in ("default", "linear", "llama3", "yarn"):
        return f"its rotary embeddings are scaled by {rope['rope_type']}"
    if rope.get("partial_rotary_factor") not in (None, 1, 1.0):
        return "its rotary embeddings rotate a part of each head"
    return None


def rope_parameters(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of the rotary embeddings, with `rope_type` and `rope_theta`."""
    found = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    kind = found.get("rope_type") or found.get("type") or "default"
    theta = found.get("rope_theta") or settings.get("rope_theta") or 10000.0
    return {**found, "rope_type": kind, "rope_theta": theta}
