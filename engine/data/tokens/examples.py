"""Tokenized examples of each task, and the result of tokenization."""

from __future__ import annotations

from dataclasses import dataclass, field

IGNORED = -100
"""Label of a position without a next-token target."""


@dataclass(frozen=True)
class TextExample:
    """A token sequence with next-token targets."""

    id: str
    input_ids: list[int]
    labels: list[int]
    """One label per token, not shifted; `IGNORED` where no loss is taken."""
    weights: tuple[float, ...] | None = field(default=None, kw_only=True)
    """Factor on the loss of each token; None if all are 1."""
    place: str = field(default="", kw_only=True, compare=False)
    """Where the record is stored, such as `train.jsonl:7`; empty if built in memory."""

    @property
    def length(self) -> int:
        """Number of tokens."""
        return len(self.input_ids)

    @property
    def row_length(self) -> int:
        """Number of tokens of its row in a batch."""
        return len(self.input_ids)


@dataclass(frozen=True)
class PairExample:
    """An anchor with its positive and its hard negatives."""

    id: str
    anchor: list[int]
    positive: list[int]
    negatives: tuple[list[int], ...] = ()
    label: int | None = None
    """Pairs with equal labels are not negatives of each other; None: no label."""
    prompt: int = 0
    """Number of leading tokens of the anchor that belong to the instruction."""
    score: float | None = None
    """How similar anchor and positive are, as the loss uses it; None for losses without scores."""
    passage_prompts: tuple[int, ...] = ()
    """Number of instruction tokens before the positive and before each negative; empty if none."""
    weight: float = field(default=1.0, kw_only=True)
    """Factor on the loss of the pair."""
    place: str = field(default="", kw_only=True, compare=False)
    """Where the record is stored, such as `train.jsonl:7`; empty if built in memory."""

    @property
    def length(self) -> int:
        """Number of tokens of all its texts."""
        return sum(len(ids) for ids in (self.anchor, self.positive, *self.negatives))

    @property
    def row_length(self) -> int:
        """Number of tokens of its longest text."""
        return max(len(ids) for ids in (self.anchor, self.positive, *self.negatives))


@dataclass(frozen=True)
class PreferenceExample:
    """A chosen and a rejected completion of one prompt; only completion tokens have labels."""

    id: str
    chosen: TextExample
    rejected: TextExample
    margin: float | None = None
    """By how much the chosen completion is better; None if the data do not say it."""
    weight: float = field(default=1.0, kw_only=True)
    """Factor on the loss of the pair."""

    @property
    def place(self) -> str:
        """Place of the record, such as `data.jsonl:3`; empty if built in memory."""
        return self.chosen.place

    @property
    def length(self) -> int:
        """Number of tokens of both sequences."""
        return self.chosen.length + self.rejected.length

    @property
    def row_length(self) -> int:
        """Number of tokens of the longer sequence."""
        return max(self.chosen.length, self.rejected.length)

    @property
    def input_ids(self) -> list[int]:
        """The tokens of both sequences, the chosen one first."""
        return [*self.chosen.input_ids, *self.rejected.input_ids]


@dataclass(frozen=True)
class RatedExample:
    """A completion rated desirable or not, and its prompt with another record's completion."""

    id: str
    text: TextExample
    desirable: bool
    mismatched: TextExample
    """The prompt with another record's completion, from which the KL to the reference is
    estimated."""
    weight: float = field(default=1.0, kw_only=True)
    """Factor on the loss of the completion."""

    @property
    def place(self) -> str:
        """Place of the record, such as `data.jsonl:3`; empty if built in memory."""
        return self.text.place

    @property
    def length(self) -> int:
        """Number of tokens of both sequences."""
        return self.text.length + self.mismatched.length

    @property
    def row_length(self) -> int:
        """Number of tokens of the longer sequence."""
        return max(self.text.length, self.mismatched.length)

    @property
    def input_ids(self) -> list[int]:
        """The tokens of the record itself."""
        return self.text.input_ids


@dataclass(frozen=True)
class PackedExample:
    """Documents packed into one row; attention does not cross documents."""

    documents: tuple[TextExample, ...]

    @property
    def id(self) -> str:
        """The ids of its documents, joined by ` + `."""
        return " + ".join(document.id for document in self.documents)

    @property
    def place(self) -> str:
        """Place of the record of its first document; empty if built in memory."""
        return self.documents[0].place

    @property
    def length(self) -> int:
        """Number of tokens of all its documents."""
        return sum(document.length for document in self.documents)

    @property
    def row_length(self) -> int:
        """Number of tokens of its row in a batch."""
        return self.length

    @property
    def input_ids(self) -> list[int]:
        """The concatenated tokens of its documents."""
        return [token for document in self.documents for token in document.input_ids]


Example = TextExample | PairExample | PreferenceExample | RatedExample | PackedExample


def has_weight(example: Example) -> bool:
    """Whether the loss of an example, or of a part of it, has another weight than 1."""
    match example:
        case TextExample(weights=weights):
            return weights is not None
        case PackedExample(documents=documents):
            return any(map(has_weight, documents))
        case _:
            return example.weight != 1


def has_effect(example: Example) -> bool:
    """Whether the weight of an example, or of a target in it, is above 0."""
    match example:
        case TextExample(labels=labels, weights=weights):
            if weights is None:
                return True
            pairs = zip(labels[1:], weights[1:], strict=True)
            return any(label != IGNORED and weight > 0 for label, weight in pairs)
        case PackedExample(documents=documents):
            return any(map(has_effect, documents))
        case _:
            return example.weight > 0


def example_place(example: Example) -> str:
    """Return where the record of an example is stored, or its id if it was built in memory."""
    return example.place or example.id


@dataclass(frozen=True)
class TokenizedText:
    """The result of tokenizing one text."""

    example: TextExample | None
    """The tokenized text; None if it has no target, or if its targets are not known."""
    cut: bool
    """Whether the text was truncated."""
    unplaced: bool = False
    """Whether its tokens could not be placed in the text, so that its targets are not known."""
    several_eos: bool = False
    """Whether it ended with several end-of-sequence tokens, of which one is kept."""
    rejected: str = ""
    """Why the chat template or the tokenizer does not take it; empty if they do."""
