"""Tokenized records, ready for a collator."""

from __future__ import annotations

from dataclasses import dataclass, field

IGNORED = -100
"""Label of a position that is no target."""


@dataclass(frozen=True)
class TextExample:
    """One sequence with next-token targets."""

    id: str
    input_ids: list[int]
    labels: list[int]
    """Same length as `input_ids`, not shifted; `IGNORED` where no loss is taken."""

    @property
    def length(self) -> int:
        """Tokens."""
        return len(self.input_ids)


@dataclass(frozen=True)
class PairExample:
    """An anchor, its positive and its own hard negatives."""

    id: str
    anchor: list[int]
    positive: list[int]
    negatives: tuple[list[int], ...] = ()
    label: int | None = None
    """Pairs with equal labels are no negatives of each other."""
    prompt: int = 0
    """Leading tokens of the anchor that are the instruction before it."""

    @property
    def length(self) -> int:
        """Tokens of all its texts."""
        return sum(len(ids) for ids in (self.anchor, self.positive, *self.negatives))


@dataclass(frozen=True)
class PreferenceExample:
    """A better and a worse completion of one prompt; labels are the completions' tokens."""

    id: str
    chosen: TextExample
    rejected: TextExample

    @property
    def length(self) -> int:
        """Tokens of both."""
        return self.chosen.length + self.rejected.length

    @property
    def input_ids(self) -> list[int]:
        """The tokens of both, the better one first."""
        return [*self.chosen.input_ids, *self.rejected.input_ids]


@dataclass(frozen=True)
class RatedExample:
    """A completion that is wanted or not, and its prompt with another record's completion."""

    id: str
    text: TextExample
    desirable: bool
    mismatched: TextExample
    """Tells how far the model is from its reference on completions that do not belong here."""

    @property
    def length(self) -> int:
        """Tokens of both sequences."""
        return self.text.length + self.mismatched.length

    @property
    def input_ids(self) -> list[int]:
        """The tokens of the record itself."""
        return self.text.input_ids


@dataclass(frozen=True)
class PackedExample:
    """Documents that share a row and do not see each other."""

    documents: tuple[TextExample, ...]

    @property
    def id(self) -> str:
        """The ids of its documents."""
        return " + ".join(document.id for document in self.documents)

    @property
    def length(self) -> int:
        """Tokens of all its documents."""
        return sum(document.length for document in self.documents)

    @property
    def input_ids(self) -> list[int]:
        """The tokens of all its documents in a row."""
        return [token for document in self.documents for token in document.input_ids]


Example = TextExample | PairExample | PreferenceExample | RatedExample | PackedExample


@dataclass(frozen=True)
class TokenizedText:
    """What became of one text."""

    example: TextExample | None
    """None when no target was left in it."""
    cut: bool


@dataclass
class Tokenized:
    """Examples and what happened on the way."""

    examples: list[Example] = field(default_factory=list)
    cut: int = 0
    """Records with a text that was longer than `max_length`."""
    unlabelled: int = 0
    """Records dropped because no target was left, or a text was empty."""
    alike: int = 0
    """Preferences dropped because both completions came to the same tokens."""

    def __add__(self, other: Tokenized) -> Tokenized:
        """Both together, in their order."""
        return Tokenized(
            self.examples + other.examples,
            self.cut + other.cut,
            self.unlabelled + other.unlabelled,
            self.alike + other.alike,
        )
