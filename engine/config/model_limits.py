"""The limits of a model for its input: the largest token id and the longest sequence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

_FIXED_POSITIONS = frozenset(
    {
        "biogpt",
        "codegen",
        "ctrl",
        "gpt2",
        "gpt_bigcode",
        "gpt_neo",
        "gptj",
        "openai-gpt",
        "opt",
        "xglm",
    }
)
"""Model types with a table of positions, beyond which they cannot run."""
_STRETCHED = ("linear", "dynamic", "yarn")
"""Kinds of RoPE scaling that multiply the positions of config.json by a factor."""


@dataclass(frozen=True)
class ModelLimits:
    """Limits on the input of a model; None where there is none or it is not known."""

    vocab_rows: int | None = None
    """Rows of the input embedding; token ids must be smaller."""
    positions: int | None = None
    """Longest sequence that the model was made for, in tokens."""
    fixed: bool = False
    """Whether the model cannot run beyond its positions at all."""

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> ModelLimits:
        """Return the limits in the parsed config.json of a language model."""
        text = settings.get("text_config") or settings
        rows = _number(text, "vocab_size")
        positions = _number(text, "max_position_embeddings", "n_positions")
        if positions is None or text.get("alibi"):
            return cls(rows)
        fixed = text.get("model_type") in _FIXED_POSITIONS
        factor = max([1.0, *_factors(text)])
        return cls(rows, positions if fixed else int(positions * factor), fixed)

    def with_rows(self, rows: int) -> ModelLimits:
        """Return the limits of a model whose embedding is enlarged to at least `rows` rows.

        An unknown number of rows stays unknown.
        """
        return (
            self
            if self.vocab_rows is None
            else replace(self, vocab_rows=max(self.vocab_rows, rows))
        )


UNLIMITED = ModelLimits()
"""The limits of a model whose settings are not known."""


def _number(settings: Mapping[str, Any], *names: str) -> int | None:
    values = (settings.get(name) for name in names)
    return next((value for value in values if isinstance(value, int) and value > 0), None)


def _factors(settings: Mapping[str, Any]) -> Iterator[float]:
    """Yield the factors of the RoPE scaling, which some models set for each type of layer."""
    for name in ("rope_parameters", "rope_scaling"):
        found = settings.get(name)
        parts = [found, *found.values()] if isinstance(found, Mapping) else []
        for part in (part for part in parts if isinstance(part, Mapping)):
            kind, factor = part.get("rope_type", part.get("type")), part.get("factor")
            if kind in _STRETCHED and isinstance(factor, int | float):
                yield float(factor)
