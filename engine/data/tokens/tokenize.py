"""Tokenize typed records into examples whose labels mark the targets of the loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Protocol

from ...config.data_reasons import CUT, NO_SCORE, NO_TARGET, UNUSED_NEGATIVES
from ...errors import DataError
from ..chat.conversations import ChatOptions, Conversation, ConversationReader
from ..findings import Findings
from ..records.formats import (
    CompletionRecord,
    MessagesRecord,
    PairRecord,
    PreferenceRecord,
    RatedRecord,
    Record,
    TextRecord,
    place_of,
)
from .examples import IGNORED, Example, PairExample, TextExample, TokenizedText
from .preference import PreferenceData, Rating, assemble, completions_of, with_mismatched
from .scores import ScoreRange, mapped

CHUNK = 256
"""Records tokenized at once: enough for speed, few enough to show progress."""


class Tokenizer(Protocol):
    """The used part of a transformers tokenizer, which must be a fast one (with offsets)."""

    is_fast: bool
    eos_token: str | None
    eos_token_id: int | None
    pad_token_id: int | None
    bos_token: str | None
    bos_token_id: int | None
    added_tokens_encoder: Mapping[str, int]
    chat_template: Any
    special_tokens_map: Mapping[str, Any]

    def __call__(self, text: list[str], **options: Any) -> Mapping[str, Any]:
        """Return token ids and offsets of several texts."""
        ...

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any:
        """Format a conversation for the model."""
        ...

    def get_chat_template(self, chat_template: str | None, tools: Any) -> str:
        """Return the template for conversations with or without tools."""
        ...


@dataclass(frozen=True)
class TokenizeOptions:
    """Settings of tokenization."""

    max_length: int
    completion_only: bool = True
    train_on: str = "all"
    """`all` assistant turns, the `last` one, or the turns of the role with this name."""
    reasoning: Literal["keep", "drop"] = "keep"
    """Whether the reasoning of assistant turns is learned or dropped."""
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
    chat = _conversation_reader(tokenizer, options, findings)
    findings.counted("records", len(records))
    for start in range(0, len(records), CHUNK):
        chunk = records[start : start + CHUNK]
        pairs = [record for record in chunk if isinstance(record, PairRecord)]
        preferences = [record for record in chunk if isinstance(record, PreferenceData)]
        plain = [record for record in chunk if not isinstance(record, PairRecord | PreferenceData)]
        examples += _pairs(pairs, tokenizer, options, findings)
        ratings += _add_preferences(examples, preferences, tokenizer, options, findings, chat)
        examples += _plain(plain, tokenizer, options, findings, chat)
        progress(min(start + CHUNK, len(records)), len(records))
    examples += with_mismatched(ratings, options.max_length)
    return examples


def _conversation_reader(
    tokenizer: Tokenizer, options: TokenizeOptions, findings: Findings
) -> ConversationReader:
    tokens = [str(token) for token in tokenizer.added_tokens_encoder]
    settings = ChatOptions(options.train_on, options.reasoning)
    return ConversationReader(tokenizer, tokens, str(tokenizer.eos_token), settings, findings)


def _plain(
    records: Sequence[Record],
    tokenizer: Tokenizer,
    options: TokenizeOptions,
    findings: Findings,
    chat: ConversationReader,
) -> Iterator[Example]:
    for record, text in zip(records, _texts(records, tokenizer, options, chat), strict=True):
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
    chat: ConversationReader,
) -> list[Rating]:
    """Add preferences and return ratings; only completions are targets, whatever the options."""
    options = replace(options, completion_only=True)
    sides = [side for record in records for side in completions_of(record)]
    texts = _texts(sides, tokenizer, options, chat)
    return assemble(examples, records, texts, findings, rated=options.rated)


@dataclass(frozen=True)
class _Passage:
    """A text with the character spans of its targets."""

    id: str
    text: str
    spans: tuple[tuple[int, int], ...]
    special: bool
    """Whether the tokenizer adds special tokens and an EOS; a chat template contains them."""
    place: str = ""
    """Where the record is stored; empty if built in memory."""


def _passage(record: Record, options: TokenizeOptions, chat: ConversationReader) -> _Passage:
    match record:
        case TextRecord(id=identity, text=text):
            return _Passage(identity, text, ((0, len(text)),), special=True)
        case CompletionRecord(id=identity, prompt=str(prompt), completion=str(completion)):
            text = prompt + completion
            start = len(prompt) if options.completion_only else 0
            targets = ((start, len(text)),) if completion else ()
            return _Passage(identity, text, targets, special=True)
        case CompletionRecord(prompt=prompt, completion=completion):
            turns = (*prompt, *completion)
            first = len(prompt)
        case MessagesRecord(messages=turns):
            first = 0
        case _:
            raise TypeError(type(record))
    conversation = Conversation(turns, record.tools, first, place_of(record))
    if not options.completion_only:
        text = chat.whole(conversation)
        return _Passage(record.id, text, ((0, len(text)),), special=False)
    return _Passage(record.id, *chat.read(conversation), special=False)


def _texts(
    records: Sequence[Record],
    tokenizer: Tokenizer,
    options: TokenizeOptions,
    chat: ConversationReader,
) -> list[TokenizedText]:
    """Tokenize each record as one sequence, in their order."""
    passages = [replace(_passage(record, options, chat), place=record.place) for record in records]
    found: dict[int, TokenizedText] = {}
    for special in (False, True):
        group = [n for n, passage in enumerate(passages) if passage.special is special]
        placed = [(passages[n].text, place_of(records[n])) for n in group]
        encoded = _encode(placed, tokenizer, special)
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
        body = ids
        while self.eos is not None and body and body[-1] == self.eos:
            body = body[:-1]
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
    covered = covered_characters(passage.text, offsets[: closed.kept])
    wanted = [
        begin < end and any(begin < stop and start < end for start, stop in passage.spans)
        for begin, end in covered
    ]
    # A truncated text does not end here, so its EOS is not a target.
    ends_here = bool(passage.spans) and not closed.cut
    wanted += [ends_here] * (len(closed.ids) - closed.kept)
    labels = [token if use else IGNORED for token, use in zip(closed.ids, wanted, strict=True)]
    # The first token cannot be predicted, because no token precedes it.
    if not passage.text or all(label == IGNORED for label in labels[1:]):
        return TokenizedText(None, closed.cut)
    example = TextExample(passage.id, closed.ids, labels, place=passage.place)
    return TokenizedText(example, closed.cut)


def _pairs(
    pairs: list[PairRecord], tokenizer: Tokenizer, options: TokenizeOptions, findings: Findings
) -> Iterator[Example]:
    texts = [(text, place_of(pair)) for pair in pairs for text in _pair_texts(pair, options)]
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
        yield PairExample(
            pair.id,
            anchor,
            positive,
            tuple(negatives),
            pair.label,
            prompt,
            score,
            place=pair.place,
        )


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
    placed: list[tuple[str, str]], tokenizer: Tokenizer, special: bool
) -> Iterator[tuple[list[int], list[tuple[int, int]]]]:
    """Yield token ids and their character offsets, not truncated, with BOS once.

    Args:
        placed: Texts, each with the place of its record.
        tokenizer: The tokenizer of the model.
        special: Whether the tokenizer adds special tokens.

    Raises:
        DataError: The tokenizer refuses a text, which is named by its place.
    """
    if not placed:
        return
    call = partial(
        tokenizer,
        add_special_tokens=special,
        return_offsets_mapping=True,
        truncation=False,
        verbose=False,  # no warning about long texts: they are truncated here
    )
    try:
        encoded = call([text for text, _ in placed])
    except Exception as error:  # noqa: BLE001  # tokenizers raise any exception
        raise _refused_text(placed, call, error) from None
    bos = tokenizer.bos_token_id if special else None
    for ids, offsets in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True):
        # The text was rendered with a BOS of its own, as chat templates do.
        twice = bos is not None and ids[:2] == [bos, bos]
        yield (ids[1:], offsets[1:]) if twice else (ids, offsets)


def _refused_text(
    placed: list[tuple[str, str]], call: Callable[[list[str]], Any], error: Exception
) -> DataError:
    """Return the error that names the first text that the tokenizer refuses alone."""
    for text, place in placed:
        try:
            call([text])
        except Exception as own:  # noqa: BLE001  # tokenizers raise any exception
            lone = any("\ud800" <= character <= "\udfff" for character in text)
            what = "a lone surrogate, half of a character" if lone else " ".join(str(own).split())
            return DataError(
                f"{place}: the tokenizer cannot read this text: {what}; correct the record, or "
                "remove it"
            )
    return DataError(f"the tokenizer cannot read these texts: {error}; check the records")


def covered_characters(text: str, offsets: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the characters that each token stands for, white space before it included.

    Some tokenizers leave white space out of their offsets, so that a token of white space has
    none. Characters between two tokens belong to the later one if they are white space.
    """
    found = []
    reached = 0
    for begin, end in offsets:
        start = begin
        if reached < begin and end > reached and not text[reached:begin].strip():
            start = reached
        found.append((start, end))
        reached = max(reached, end)
    return found
