"""Tokenize typed records into examples whose labels mark the targets of the loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ..config.data_reasons import CUT, NO_SCORE, NO_TARGET, UNLEARNED_TURNS, UNUSED_NEGATIVES
from ..errors import DataError
from .examples import IGNORED, Example, PairExample, TextExample, TokenizedText
from .findings import Findings
from .formats import (
    CompletionRecord,
    Message,
    MessagesRecord,
    PairRecord,
    PreferenceRecord,
    RatedRecord,
    Record,
    TextRecord,
    place_of,
)
from .preference import PreferenceData, Rating, assemble, completions_of, with_mismatched
from .scores import ScoreRange, mapped

CHUNK = 256
"""Records tokenized at once: enough for speed, few enough to show progress."""


class Tokenizer(Protocol):
    """The used part of a transformers tokenizer, which must be a fast one (with offsets)."""

    is_fast: bool
    eos_token_id: int | None
    chat_template: Any

    def __call__(self, text: list[str], **options: Any) -> Mapping[str, Any]:
        """Return token ids and offsets of several texts."""
        ...

    def apply_chat_template(self, conversation: Sequence[Message], **options: Any) -> Any:
        """Format a conversation for the model."""
        ...


@dataclass(frozen=True)
class TokenizeOptions:
    """Settings of tokenization."""

    max_length: int
    completion_only: bool = True
    instruction: str = ""
    """Text put before every anchor."""
    hard_negatives: int = 0
    """Largest number of hard negatives per pair."""
    scored: bool = False
    """Whether the loss needs a score of every pair; pairs without one are dropped."""
    score_range: ScoreRange | None = None
    """Range of the scores that is mapped to 0 … 1; None keeps scores as they are."""
    rated: bool = False
    """Split preferences into a desirable (chosen) and an undesirable (rejected) completion."""


def tokenize_records(
    records: Sequence[Record],
    tokenizer: Tokenizer,
    options: TokenizeOptions,
    findings: Findings,
    progress: Callable[[float, float], None],
) -> list[Example]:
    """Tokenize records; records of one kind keep their order.

    Args:
        records: The records.
        tokenizer: The tokenizer of the model.
        options: Settings of tokenization.
        findings: Receives what is truncated, dropped or not learned.
        progress: Called with (done, total).

    Raises:
        DataError: The tokenizer has no offsets or no chat template, or the template rejects a
            conversation.
    """
    if not tokenizer.is_fast:
        raise DataError(
            f"{type(tokenizer).__name__} is a slow tokenizer, and the loss mask needs the offsets "
            "of a fast one; use a model that has a tokenizer.json"
        )
    examples: list[Example] = []
    ratings: list[Rating] = []
    findings.counted("records", len(records))
    for start in range(0, len(records), CHUNK):
        chunk = records[start : start + CHUNK]
        pairs = [record for record in chunk if isinstance(record, PairRecord)]
        preferences = [record for record in chunk if isinstance(record, PreferenceData)]
        plain = [record for record in chunk if not isinstance(record, PairRecord | PreferenceData)]
        examples += _pairs(pairs, tokenizer, options, findings)
        ratings += _add_preferences(examples, preferences, tokenizer, options, findings)
        examples += _plain(plain, tokenizer, options, findings)
        progress(min(start + CHUNK, len(records)), len(records))
    examples += with_mismatched(ratings, options.max_length)
    return examples


def _plain(
    records: Sequence[Record], tokenizer: Tokenizer, options: TokenizeOptions, findings: Findings
) -> Iterator[Example]:
    for record, text in zip(records, _texts(records, tokenizer, options, findings), strict=True):
        findings.note(CUT, place_of(record), count=text.cut)
        findings.note(NO_TARGET, place_of(record), count=text.example is None)
        if text.example is not None:
            yield text.example


def _add_preferences(
    examples: list[Example],
    records: Sequence[PreferenceRecord | RatedRecord],
    tokenizer: Tokenizer,
    options: TokenizeOptions,
    findings: Findings,
) -> list[Rating]:
    """Add preferences and return ratings; only completions are targets, whatever the options."""
    options = replace(options, completion_only=True)
    sides = [side for record in records for side in completions_of(record)]
    texts = _texts(sides, tokenizer, options, findings)
    return assemble(examples, records, texts, findings, rated=options.rated)


@dataclass(frozen=True)
class _Passage:
    """A text with the character spans of its targets."""

    id: str
    text: str
    spans: tuple[tuple[int, int], ...]
    special: bool
    """Whether the tokenizer adds special tokens and an EOS; a chat template contains them."""


def _passage(
    record: Record, tokenizer: Tokenizer, options: TokenizeOptions, findings: Findings
) -> _Passage:
    match record:
        case TextRecord(id=identity, text=text):
            return _Passage(identity, text, ((0, len(text)),), special=True)
        case CompletionRecord(id=identity, prompt=str(prompt), completion=str(completion)):
            text = prompt + completion
            start = len(prompt) if options.completion_only else 0
            targets = ((start, len(text)),) if completion else ()
            return _Passage(identity, text, targets, special=True)
        case CompletionRecord(id=identity, prompt=prompt, completion=completion):
            turns = (*prompt, *completion)
            first = len(prompt)
        case MessagesRecord(id=identity, messages=turns):
            first = 0
        case _:
            raise TypeError(type(record))
    chat = _Chat(tokenizer, place_of(record))
    text = chat.render(turns)
    if not options.completion_only:
        return _Passage(identity, text, ((0, len(text)),), special=False)
    written = chat.assistant_spans(turns, first)
    wanted = sum(turn["role"] == "assistant" for turn in turns[first:])
    findings.counted("turns", wanted)
    findings.note(UNLEARNED_TURNS, place_of(record), count=wanted - len(written))
    return _Passage(identity, text, written, special=False)


@dataclass(frozen=True)
class _Chat:
    """Formats the conversation of one record with the chat template."""

    tokenizer: Tokenizer
    place: str

    def render(self, turns: Sequence[Message], opening: bool = False) -> str:
        """Return the conversation as text.

        Args:
            turns: The messages.
            opening: End with the tokens that open an assistant turn.

        Raises:
            DataError: There is no chat template, or it rejects the messages.
        """
        if not self.tokenizer.chat_template:
            raise DataError(
                f"{self.place}: messages need a chat template, and this model's tokenizer "
                "has none; use an instruct model, or data with text or prompt + completion"
            )
        try:
            return str(
                self.tokenizer.apply_chat_template(
                    list(turns), tokenize=False, add_generation_prompt=opening
                )
            )
        except Exception as error:  # noqa: BLE001  # templates raise any exception
            raise DataError(
                f"{self.place}: the model's chat template rejects it: {error}; correct "
                "the roles and their order in this record"
            ) from None

    def assistant_spans(self, turns: Sequence[Message], first: int) -> tuple[tuple[int, int], ...]:
        """Return the character spans of the assistant turns, their end tokens included.

        Works with any template: the conversation is rendered up to and including each assistant
        turn, and the text added after the opening tokens is the turn. If a template rewrites
        earlier turns (some drop past reasoning), those are not a prefix and give no targets.

        Args:
            turns: The whole conversation.
            first: Index of the first turn that may be a target; earlier turns are prompt.
        """
        whole = self.render(turns)
        spans = []
        for index in range(first, len(turns)):
            if turns[index]["role"] != "assistant":
                continue
            before = self.render(turns[:index], opening=True) if index else ""
            through = self.render(turns[: index + 1]).rstrip()
            if through.startswith(before) and whole.startswith(through):
                spans.append((len(before), len(through)))
        return tuple(spans)


def _texts(
    records: Sequence[Record], tokenizer: Tokenizer, options: TokenizeOptions, findings: Findings
) -> list[TokenizedText]:
    """Tokenize each record as one sequence, in their order."""
    passages = [_passage(record, tokenizer, options, findings) for record in records]
    found: dict[int, TokenizedText] = {}
    for special in (False, True):
        group = [n for n, passage in enumerate(passages) if passage.special is special]
        encoded = _encode([passages[n].text for n in group], tokenizer, special)
        ending = _Ending.of(tokenizer, options, special)
        for number, (ids, offsets) in zip(group, encoded, strict=True):
            found[number] = _tokenized(passages[number], ids, offsets, ending)
    return [found[number] for number in range(len(passages))]


@dataclass(frozen=True)
class _Ending:
    """Largest length of a sequence, and the EOS that closes it."""

    max_length: int
    eos: int | None

    @classmethod
    def of(cls, tokenizer: Tokenizer, options: TokenizeOptions, special: bool) -> _Ending:
        """Return the ending: an EOS for raw text, none for a chat template, which has its own."""
        return cls(options.max_length, tokenizer.eos_token_id if special else None)

    def close(self, ids: list[int]) -> _Closed:
        """Truncate the ids and append an EOS unless they end with one."""
        body = ids[:-1] if self.eos is not None and ids and ids[-1] == self.eos else ids
        tail = [] if self.eos is None else [self.eos]
        kept = body[: self.max_length - len(tail)]
        return _Closed(kept + tail, len(kept), len(body) > len(kept))


@dataclass(frozen=True)
class _Closed:
    """A truncated and closed sequence."""

    ids: list[int]
    kept: int
    """Number of its text tokens; an EOS may follow."""
    cut: bool


def _tokenized(
    passage: _Passage, ids: list[int], offsets: list[tuple[int, int]], ending: _Ending
) -> TokenizedText:
    closed = ending.close(ids)
    wanted = [
        any(start <= begin < end <= stop for start, stop in passage.spans)
        for begin, end in offsets[: closed.kept]
    ]
    # A truncated text does not end here, so its EOS is not a target.
    ends_here = bool(passage.spans) and not closed.cut
    wanted += [ends_here] * (len(closed.ids) - closed.kept)
    labels = [token if use else IGNORED for token, use in zip(closed.ids, wanted, strict=True)]
    # The first token cannot be predicted, because no token precedes it.
    if not passage.text or all(label == IGNORED for label in labels[1:]):
        return TokenizedText(None, closed.cut)
    return TokenizedText(TextExample(passage.id, closed.ids, labels), closed.cut)


def _pairs(
    pairs: list[PairRecord], tokenizer: Tokenizer, options: TokenizeOptions, findings: Findings
) -> Iterator[Example]:
    texts = [text for pair in pairs for text in _pair_texts(pair, options)]
    ending = _Ending.of(tokenizer, options, special=True)
    encoded = _encode(texts, tokenizer, special=True)
    closed = iter([(ending.close(ids), offsets) for ids, offsets in encoded])
    for pair in pairs:
        whole = [next(closed) for _ in _pair_texts(pair, options)]
        members = [member for member, _ in whole]
        if not (pair.anchor.strip() and pair.positive.strip()):
            findings.note(NO_TARGET, place_of(pair))
            continue
        if options.scored and pair.score is None:
            findings.note(NO_SCORE, place_of(pair))
            continue
        if options.scored and pair.negatives:
            findings.note(UNUSED_NEGATIVES, place_of(pair))
        findings.note(CUT, place_of(pair), count=any(member.cut for member in members))
        anchor, positive, *negatives = (member.ids for member in members)
        offsets = whole[0][1][: members[0].kept]
        prompt = _prompt_tokens(offsets, len(options.instruction))
        prompt = prompt if prompt < len(anchor) else 0
        score = None if pair.score is None else mapped(pair.score, options.score_range)
        yield PairExample(pair.id, anchor, positive, tuple(negatives), pair.label, prompt, score)


def _prompt_tokens(offsets: list[tuple[int, int]], characters: int) -> int:
    """Return how many leading tokens lie within the first `characters` of a text."""
    if characters == 0:
        return 0
    return next((n for n, (_, end) in enumerate(offsets) if end > characters), len(offsets))


def _pair_texts(pair: PairRecord, options: TokenizeOptions) -> Iterator[str]:
    yield options.instruction + pair.anchor
    yield pair.positive
    yield from pair.negatives[: options.hard_negatives]


def _encode(
    texts: list[str], tokenizer: Tokenizer, special: bool
) -> Iterator[tuple[list[int], list[tuple[int, int]]]]:
    """Yield token ids and their character offsets, not truncated."""
    if not texts:
        return iter(())
    encoded = tokenizer(
        texts,
        add_special_tokens=special,
        return_offsets_mapping=True,
        truncation=False,
        verbose=False,  # no warning about long texts: they are truncated here
    )
    return zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)
