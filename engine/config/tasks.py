"""What the tasks are: the records each learns from."""

from __future__ import annotations

from collections.abc import Mapping

JUDGED = ("dpo", "kto")
"""Tasks that learn from completions somebody judged, against the model without its adapter."""
FORMATS_OF: Mapping[str, tuple[str, ...]] = {
    "sft": ("messages", "prompt_completion", "text"),
    "contrastive": ("pairs",),
    "dpo": ("preference",),
    "kto": ("rated", "preference"),
}
"""Formats of records by task, the one that is looked for first in front."""
