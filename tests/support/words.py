"""Stands in for a tokenizer where nothing is tokenized."""

from __future__ import annotations

from typing import Any


class Words:
    """Writes token ids as numbers."""

    def decode(self, ids: list[int], **options: Any) -> str:
        """The ids themselves."""
        return " ".join(map(str, ids))
