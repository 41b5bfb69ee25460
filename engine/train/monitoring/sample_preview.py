"""Samples as text: the beginning of what a sample says, and its first tokens."""

from __future__ import annotations

from typing import Any

from ...data.tokens.examples import Example, PairExample

_TEXT_TOKENS = 80
_PIECES = 24


class SamplePreview:
    """Decodes samples with the tokenizer of the model."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def of(self, example: Example) -> tuple[str, list[str]]:
        """Return the beginning of a sample's text in one line, and its first tokens as text."""
        if isinstance(example, PairExample):
            text = f"{self._decoded(example.anchor)} → {self._decoded(example.positive)}"
            return text, self._pieces([*example.anchor, *example.positive])
        return self._decoded(example.input_ids), self._pieces(example.input_ids)

    def _decoded(self, ids: list[int]) -> str:
        text = str(self._tokenizer.decode(ids[:_TEXT_TOKENS], skip_special_tokens=True))
        return " ".join(text.split()) + (" …" if len(ids) > _TEXT_TOKENS else "")

    def _pieces(self, ids: list[int]) -> list[str]:
        return [str(self._tokenizer.decode([one])) for one in ids[:_PIECES]]
