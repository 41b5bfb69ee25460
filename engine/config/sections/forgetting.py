"""The section about the forgetting meter."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from .base import MOST, Count, Positive, Section

GENERAL = "general"
"""Name of the texts that are installed with the package."""


class ForgettingConfig(Section, frozen=True, kw_only=True):
    """How much a model forgets of what it knew: its next-token loss on general texts.

    Each evaluation also measures the loss on these texts, and how far it is above that of the
    base model, which is measured once. It needs `data.eval` or `data.eval_fraction`.
    """

    texts: str | None = None
    """The texts: `general` are about 200 short ones that are installed with the package; or a file
    with paragraphs that are separated by blank lines, or a `.jsonl` file with a field `text`. null
    is off."""
    limit: Count = 200
    """Use at most this many texts, evenly spaced."""
    max_length: Annotated[int, Meta(ge=8, le=MOST)] = 256
    """Tokens per text; longer ones are truncated, and their number is reported."""
    alarm: Positive | None = 0.1
    """Rise of the loss above that of the base model from which an alarm is raised; 0.1 is a
    perplexity that is a tenth higher. null raises none."""
