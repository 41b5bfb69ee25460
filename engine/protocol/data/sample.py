"""Records as the model sees them: their texts, with the parts that are targets.

`data_sample.json` in a run folder has these fields, and so have the answers to `check --show`.
"""

from __future__ import annotations

import msgspec


class SampleSpan(msgspec.Struct, frozen=True, array_like=True):
    """A part of a text whose tokens are all targets of one weight, or all not."""

    text: str
    learned: bool
    """Whether its tokens are targets of the loss, or part of the embedded text of a pair."""
    weight: float = 1.0
    """Factor on the loss of its tokens; 1 for tokens that are no targets."""

    @property
    def mark(self) -> str:
        """The weight as it is shown behind the text, such as ` ×0.5`; empty if it is 1."""
        return "" if self.weight == 1 else f" ×{self.weight:g}"


class SampleToken(msgspec.Struct, frozen=True, array_like=True):
    """One token of a text."""

    id: int
    text: str
    """The token as the vocabulary spells it."""
    label: int
    """The target token at this position; -100 without one."""
    weight: float = 1.0
    """Factor on the loss of a token that is learned."""


class SampleText(msgspec.Struct, frozen=True, kw_only=True):
    """One token sequence of a record, decoded."""

    name: str
    """Its part in the record, such as `text`, `anchor`, `negative 1` or `chosen`."""
    spans: list[SampleSpan]
    tokens: int
    """Number of tokens."""
    learned: int
    """Number of tokens that are targets."""
    left_out: int = 0
    """Number of characters at the end that the sample leaves out."""
    token_list: list[SampleToken] = []
    """All tokens, if they were requested."""


class SampleRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One record as the model sees it."""

    id: str
    place: str
    """Where the record is stored, such as `train.jsonl:7`."""
    texts: list[SampleText]
    """Its token sequences; empty if the record is dropped."""
    notes: list[str] = []
    """What is changed in this record, such as `truncated to data.max_length`."""


class DataSample(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `data_sample.json`."""

    records: list[SampleRecord]
    """The first records of every training source."""
