"""The record formats of each task, the tasks with preference data, and the losses with scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Format = Literal["messages", "prompt_completion", "text", "preference", "rated", "pairs"]
"""Formats of records."""

SCORED_KINDS = ("cosent", "cosine")
"""Contrastive losses of pairs with similarity scores; they use no negatives."""
PREFERENCE_TASKS = ("dpo", "kto")
"""Tasks that learn from rated or compared completions, relative to a reference model."""
FORMATS_OF: Mapping[str, tuple[Format, ...]] = {
    "sft": ("messages", "prompt_completion", "text"),
    "contrastive": ("pairs",),
    "dpo": ("preference",),
    "kto": ("rated", "preference"),
}
"""Record formats by task; of formats that equally many rows have, the first one is used."""
