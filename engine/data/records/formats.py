"""Record formats: their columns, their detection, and the conversion of rows to typed records.

- messages: `messages`, a list of {role, content}.
- prompt_completion: `prompt` and `completion`, both text (concatenated unchanged: the separator
  belongs in the data) or both message lists (formatted by the chat template).
- text: `text`.
- tokens: `input_ids` and more columns, see `token_weights`, which also reads `weights` beside text.
- preference: `chosen` and `rejected`, two completions of `prompt`: three texts or three message
  lists. Two whole conversations need no prompt: their common beginning is the prompt.
- rated: `prompt`, `completion` and `label`, which is true for a good completion.
- pairs: an anchor, a positive and optional negatives under any of the names below, and an optional
  `label`: records with equal labels are not negatives of each other.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

from ...config.tasks import FORMATS_OF, Format
from ...errors import DataError
from .forms import listed
from .labels import number_of, remedy_of
from .messages import MessageRules, parse_messages, texts_by_path, tools_of
from .token_weights import IDS, WEIGHTS, Range, TokensRecord, ranges_of, tokens_record
from .turns import has_turns, turns_of

Message = Mapping[str, Any]

MARGIN = "preference_margin"
"""Key of a pair's margin in the values of a row, for tasks that use it."""

WEIGHT = "weight"
"""Column with the factor on the loss of a record."""

ANCHORS = ("anchor", "query", "question", "sentence1", "sentence_1", "text1")
POSITIVES = (
    *("positive", "pos", "document", "passage", "answer"),
    *("sentence2", "sentence_2", "text2"),
)
NEGATIVES = ("negative", "negatives", "neg", "hard_negative", "hard_negatives", "sentence3")
_NUMBERED = re.compile(r"(negative|neg)_?\d+")


@dataclass(frozen=True)
class MessagesRecord:
    """A conversation."""

    id: str
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = field(default=(), kw_only=True)
    """Tools that the assistant may call, as JSON schemas."""
    weight: float = field(default=1.0, kw_only=True)
    """Factor on the loss of the record."""
    place: str = field(default="", kw_only=True, compare=False)
    """Where the record is stored, such as `train.jsonl:7`; empty if built in memory."""


@dataclass(frozen=True)
class CompletionRecord:
    """A prompt and its completion: two texts, or two message lists."""

    id: str
    prompt: str | tuple[Message, ...]
    completion: str | tuple[Message, ...]
    ranges: tuple[Range, ...] = field(default=(), kw_only=True)
    """Weights of ranges of a completion that is text."""
    tools: tuple[Mapping[str, Any], ...] = field(default=(), kw_only=True)
    """Tools that the assistant may call, as JSON schemas."""
    weight: float = field(default=1.0, kw_only=True)
    """Factor on the loss of the record."""
    place: str = field(default="", kw_only=True, compare=False)
    """Where the record is stored, such as `train.jsonl:7`; empty if built in memory."""


@dataclass(frozen=True)
class TextRecord:
    """Plain text."""

    id: str
    text: str
    ranges: tuple[Range, ...] = field(default=(), kw_only=True)
    """Weights of ranges of the text."""
    weight: float = field(default=1.0, kw_only=True)
    """Factor on the loss of the record."""
    place: str = field(default="", kw_only=True, compare=False)
    """Where the record is stored, such as `train.jsonl:7`; empty if built in memory."""


@dataclass(frozen=True)
class PairRecord:
    """An anchor text, a text that matches it, and texts that do not match it."""

    id: str
    anchor: str
    positive: str
    negatives: tuple[str, ...] = ()
    label: int | None = None
    score: float | None = field(default=None, kw_only=True)
    """How similar the texts of the pair are; None if the data have no score."""
    weight: float = field(default=1.0, kw_only=True)
    """Factor on the loss of the record."""
    place: str = field(default="", kw_only=True, compare=False)
    """Where the record is stored, such as `train.jsonl:7`; empty if built in memory."""


@dataclass(frozen=True)
class PreferenceRecord:
    """A prompt with a chosen and a rejected completion."""

    id: str
    chosen: CompletionRecord
    rejected: CompletionRecord
    margin: float | None = field(default=None, kw_only=True)
    """By how much the chosen completion is better; None if the data do not say it."""
    weight: float = field(default=1.0, kw_only=True)
    """Factor on the loss of the record."""
    place: str = field(default="", kw_only=True, compare=False)
    """Where the record is stored, such as `train.jsonl:7`; empty if built in memory."""


@dataclass(frozen=True)
class RatedRecord:
    """A prompt and a completion rated desirable or not."""

    id: str
    text: CompletionRecord
    desirable: bool
    weight: float = field(default=1.0, kw_only=True)
    """Factor on the loss of the record."""
    place: str = field(default="", kw_only=True, compare=False)
    """Where the record is stored, such as `train.jsonl:7`; empty if built in memory."""


Record = (
    MessagesRecord
    | CompletionRecord
    | TextRecord
    | TokensRecord
    | PairRecord
    | PreferenceRecord
    | RatedRecord
)


class NoColumn(DataError):
    """A row lacks a column that its format needs."""


def place_of(record: Record) -> str:
    """Return where a record is stored, or its id if it was built in memory."""
    return record.place or record.id


def is_conversation(record: Record) -> bool:
    """Whether a chat template writes a record; plain text is used as it is stored."""
    match record:
        case MessagesRecord():
            return True
        case CompletionRecord(completion=completion):
            return not isinstance(completion, str)
        case PreferenceRecord(chosen=completion) | RatedRecord(text=completion):
            return is_conversation(completion)
    return False


def detect_format(columns: Collection[str], task: str = "") -> Format | None:
    """Return the format of these columns, preferably one of the task; None if unknown."""
    return next(iter(possible_formats(columns, task)), None)


def possible_formats(columns: Collection[str], task: str) -> list[Format]:
    """Return all formats that these columns allow; those of the task come first.

    For task sft, columns that may hold turns allow `messages` if they allow no other format of sft.
    """
    found = list(_formats(columns))
    wanted = [form for form in FORMATS_OF.get(task, ()) if form in found]
    if task == "sft" and not wanted and has_turns(columns):
        wanted = ["messages"]
    return [*wanted, *(form for form in found if form not in wanted)]


def _formats(columns: Collection[str]) -> Iterator[Format]:
    """Yield every format that these columns allow."""
    if "messages" in columns:
        yield "messages"
    if {"chosen", "rejected"} <= set(columns):
        yield "preference"
    if {"prompt", "completion"} <= set(columns):
        yield "prompt_completion"
        if "label" in columns:
            yield "rated"
    if _first(ANCHORS, columns) and _first(POSITIVES, columns):
        yield "pairs"
    if "text" in columns:
        yield "text"
    if IDS in columns:
        yield "tokens"


def to_record(
    values: Mapping[str, Any],
    form: Format,
    identity: str,
    place: str,
    rules: MessageRules | None = None,
) -> Record:
    """Convert one row to a typed record.

    Args:
        values: Column → value.
        form: Format of the row.
        identity: Id of the record, unless the row has a column `id`.
        place: Where the row is, such as `train.jsonl:7`, for error messages.
        rules: Which roles its messages may have; None: those that are known.

    Raises:
        DataError: A column is missing or has a value of the wrong type.
    """
    row = _Row(values, place, rules or MessageRules())
    identity = identity if values.get("id") in (None, "") else str(values["id"])
    if form == "tokens":
        found: Record = tokens_record(values, identity, place)
    else:
        found = _record(row, form, identity)
    weight = row.weight()
    return found if weight == 1 else replace(found, weight=weight)


def _record(row: _Row, form: Format, identity: str) -> Record:
    place = row.place
    if form == "messages":
        return MessagesRecord(identity, row.conversation(), tools=row.tools(), place=place)
    if form == "text":
        text = row.text("text")
        return TextRecord(identity, text, place=place, ranges=row.ranges(text))
    if form == "prompt_completion":
        found = _completion_record(row, identity)
        return replace(found, ranges=row.ranges(found.completion))
    if form == "preference":
        return _preference_record(row, identity)
    if form == "rated":
        completion = _completion_record(row, identity)
        return RatedRecord(identity, completion, row.truth("label"), place=place)
    return _pair_record(row, identity)


def label_number(label: Any) -> int | None:
    """Return a label as a number ≥ 0, equal for equal labels anywhere; None for null and NaN."""
    if label is None or label != label:  # NaN, of which every row would be one class
        return None
    digest = hashlib.blake2b(str(label).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


@dataclass(frozen=True)
class _Row:
    """A row that checks its columns when they are read."""

    values: Mapping[str, Any]
    place: str
    rules: MessageRules

    def column(self, names: Sequence[str]) -> str:
        """Return the first of these columns that the row has.

        Raises:
            NoColumn: The row has none of them.
        """
        name = _first(names, self.values)
        if name is None:
            raise NoColumn(
                f"{self.place}: no column {' or '.join(names)}; found {listed(self.values)}. "
                f"Correct this row, or name its column, as in data.columns: {{{names[0]}: COLUMN}}"
            )
        return name

    def text(self, *names: str) -> str:
        """Return the text in the first of these columns that the row has.

        Raises:
            DataError: The row has none of them (`NoColumn`), or the value is not a text.
        """
        name = self.column(names)
        return self._as_text(self.values[name], name)

    def messages(self, name: str) -> tuple[Message, ...]:
        """Return the conversation in a column, without keys whose value is null.

        Raises:
            DataError: There is no such column (`NoColumn`), or it holds no valid conversation.
        """
        return parse_messages(self.values[self.column((name,))], name, self.place, self.rules)

    def conversation(self) -> tuple[Message, ...]:
        """Return the conversation of the row, from whichever columns hold it.

        Raises:
            DataError: No column holds one (`NoColumn`), or it is not valid.
        """
        if "messages" in self.values:
            return self.messages("messages")
        return turns_of(self.values, self.place, self.rules) or self.messages("messages")

    def tools(self) -> tuple[Mapping[str, Any], ...]:
        """Return the tools of the row; none if it has no column for them.

        Raises:
            DataError: The column holds something else.
        """
        return tools_of(self.values, self.place, self.rules)

    def texts(self, name: str) -> tuple[str, ...]:
        """Return the non-empty texts of a column of the row, which holds one text, a list, or null.

        Raises:
            DataError: it holds something else.
        """
        value = self.values[name]
        many = [value] if isinstance(value, str) or value is None else value
        if not isinstance(many, Sequence):
            raise DataError(self._wrong(name, value, "text or a list of texts"))
        return tuple(self._as_text(one, name) for one in many if one)

    def truth(self, name: str) -> bool:
        """Return the value of a column that holds true or false, or 1 or 0.

        Raises:
            DataError: There is no such column (`NoColumn`), or it holds something else.
        """
        value = self.values[self.column((name,))]
        if value not in (True, False):
            raise DataError(self._wrong(name, value, "true or false"))
        return bool(value)

    def number(self, name: str) -> float | None:
        """Return the number in a column; None if it is missing, empty, NaN or infinite.

        Raises:
            DataError: The value is not a number.
        """
        value = self.values.get(name)
        if value is None or value == "":
            return None
        if (found := number_of(value)) is not None:
            return found
        try:
            float(value)  # NaN and infinity are not scores
        except (TypeError, ValueError, OverflowError):
            expected = "a number with a decimal point, such as 0.5"
            raise DataError(self._wrong(name, value, expected)) from None
        return None

    def weight(self) -> float:
        """Return the factor on the loss of the row from its column `weight`; 1 without a value.

        Raises:
            DataError: The value is not a number, negative or not finite.
        """
        value = self.values.get(WEIGHT)
        if value is None or value == "":
            return 1.0
        found = None if isinstance(value, bool) else number_of(value)
        if found is None or found < 0:
            expected = (
                "a finite number of 0 or more, which is a factor on the loss of the record; or set "
                f"data.columns: {{{WEIGHT}: null}} if it is none"
            )
            raise DataError(self._wrong(WEIGHT, value, expected))
        return found

    def ranges(self, text: str | tuple[Message, ...]) -> tuple[Range, ...]:
        """Return the weights of ranges of a text from the column `weights`; none without it.

        Raises:
            DataError: They are no ranges of the text, or it is a list of messages.
        """
        value = self.values.get(WEIGHTS)
        if value in (None, "", []) or isinstance(text, str):
            return ranges_of(value, len(text), self.place)
        expected = "no ranges beside messages, whose turns may have a weight"
        raise DataError(self._wrong(WEIGHTS, value, expected))

    def is_text(self, name: str) -> bool:
        """Whether a column holds text."""
        return isinstance(self.values.get(name), str)

    def _as_text(self, value: Any, name: str) -> str:
        if isinstance(value, list):
            raise DataError(self._wrong(name, value, texts_by_path(name, "text")))
        if not isinstance(value, str):
            raise DataError(self._wrong(name, value, "text"))
        return value

    def _wrong(self, name: str, value: Any, expected: str) -> str:
        got = "null" if value is None else f"{type(value).__name__} {str(value)[:60]!r}"
        remedy = remedy_of(value)
        return f"{self.place}: column '{name}': got {got}, expected {expected}; {remedy}"


def _completion_record(row: _Row, identity: str) -> CompletionRecord:
    if isinstance(row.values.get("prompt"), str | None) or row.is_text("completion"):
        texts = row.text("prompt"), row.text("completion")
        return CompletionRecord(identity, *texts, place=row.place)
    turns = row.messages("prompt"), row.messages("completion")
    return CompletionRecord(identity, *turns, tools=row.tools(), place=row.place)


def _preference_record(row: _Row, identity: str) -> PreferenceRecord:
    tools: tuple[Mapping[str, Any], ...] = ()
    if row.is_text("chosen"):
        prompt: str | tuple[Message, ...] = row.text("prompt")
        sides: list[Any] = [row.text("chosen"), row.text("rejected")]
    else:
        conversations = [row.messages("chosen"), row.messages("rejected")]
        given = row.values.get("prompt")
        own = () if given is None or row.is_text("prompt") else row.messages("prompt")
        # With whole conversations, a text prompt only repeats their beginning.
        prompt = own or _beginning(*conversations)
        sides = [one[0 if own else len(prompt) :] for one in conversations]
        tools = row.tools()
    chosen, rejected = (
        CompletionRecord(identity, prompt, side, tools=tools, place=row.place) for side in sides
    )
    margin = row.values.get(MARGIN)
    return PreferenceRecord(identity, chosen, rejected, margin=margin, place=row.place)


def _beginning(one: Sequence[Message], other: Sequence[Message]) -> tuple[Message, ...]:
    """Return the messages with which both conversations begin."""
    together = zip(one, other, strict=False)
    return tuple(mine for mine, _ in takewhile(lambda pair: pair[0] == pair[1], together))


def _pair_record(row: _Row, identity: str) -> PairRecord:
    """Return a pair with the first of several positives, or an empty one if the column has no text.

    Raises:
        DataError: A column is missing or has a value of the wrong type.
    """
    positives = row.texts(row.column(POSITIVES))
    columns = [name for name in row.values if name in NEGATIVES or _NUMBERED.fullmatch(name)]
    return PairRecord(
        identity,
        anchor=row.text(*ANCHORS),
        positive=positives[0] if positives else "",
        negatives=tuple(text for name in columns for text in row.texts(name)),
        label=label_number(row.values.get("label")),
        score=row.number("score"),
        place=row.place,
    )


def _first(names: Sequence[str], columns: Collection[str]) -> str | None:
    return next((name for name in names if name in columns), None)
