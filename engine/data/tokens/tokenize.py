"""Tokenize typed records into examples whose labels mark the targets of the loss."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from ...config.data_reasons import (
    CUT,
    EMPTY_ANSWERS,
    EMPTY_PAIR,
    NO_OFFSETS,
    NO_SCORE,
    NO_TARGET,
    REJECTED_RECORDS,
    SEVERAL_EOS,
    SURPLUS_NEGATIVES,
    UNUSED_NEGATIVES,
)
from ...errors import DataError
from ..chat.conversations import ChatOptions, Conversation, ConversationReader
from ..chat.template import RejectedConversation
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
from ..records.messages import TURN_WEIGHT
from ..records.token_weights import Range, TokensRecord
from .encoding import (
    Encoded,
    Encoder,
    EncodingTokenizer,
    Offsets,
    PlacedText,
    encoded_beginnings,
    tokens_within,
    whole_tokens,
)
from .endings import Closed, SequenceEnding, prompt_tokens
from .examples import IGNORED, Example, PairExample, TextExample, TokenizedText
from .preference import PreferenceData, Rating, assemble, completions_of, with_mismatched
from .scores import ScoreRange, mapped
from .split_marks import SplitMarks
from .weight_notes import note_weight

CHUNK = 256
"""Records tokenized at once: enough for speed, few enough to show progress."""


class Tokenizer(EncodingTokenizer, Protocol):
    """The used part of a transformers tokenizer, fast or slow."""

    eos_token: str | None
    eos_token_id: int | None
    pad_token_id: int | None
    bos_token: str | None
    added_tokens_encoder: Mapping[str, int]
    chat_template: Any
    special_tokens_map: Mapping[str, Any]

    def get_vocab(self) -> dict[str, int]:
        """Return the ids of all tokens."""
        ...

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any:
        """Format a conversation for the model."""
        ...

    def get_chat_template(self, chat_template: str | None, tools: Any) -> str:
        """Return the template for conversations with or without tools; `chat_template` names it.

        None as the name is the template that the tokenizer uses by itself.
        """
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
    passage_instruction: str = ""
    """Text put before every positive and every hard negative."""
    hard_negatives: int = 0
    """Largest number of hard negatives per pair."""
    scored: bool = False
    """Whether the loss needs a score of every pair; pairs without one are dropped."""
    score_range: ScoreRange | None = None
    """Range of the scores that is mapped to 0 … 1; None keeps scores as they are."""
    scored_whole: bool = False
    """Preferences are scored with their prompts, so that all their tokens count."""
    rated: bool = False
    """Split preferences into a desirable (chosen) and an undesirable (rejected) completion."""


def tokenize_records(
    records: Sequence[Record],
    tokenizer: Tokenizer,
    options: TokenizeOptions,
    findings: Findings,
    progress: Callable[[float, float], None],
) -> list[Example]:
    """Tokenize records; records of the same kind keep their order.

    Args:
        records: The records.
        tokenizer: The tokenizer of the model.
        options: Settings of tokenization.
        findings: Receives what is truncated, dropped or not learned.
        progress: Called with (done, total).

    Raises:
        DataError: There is no chat template for a conversation, or it has an error that no record
            can avoid.
    """
    examples: list[Example] = []
    ratings: list[Rating] = []
    reading = _Reading.of(tokenizer, options, findings)
    findings.counted("records", len(records))
    for record in records:
        note_weight(record, options.train_on, findings)
    for start in range(0, len(records), CHUNK):
        chunk = records[start : start + CHUNK]
        pairs = [record for record in chunk if isinstance(record, PairRecord)]
        preferences = [record for record in chunk if isinstance(record, PreferenceData)]
        plain = [record for record in chunk if not isinstance(record, PairRecord | PreferenceData)]
        examples += _pairs(pairs, reading)
        ratings += _add_preferences(examples, preferences, reading)
        examples += _plain(plain, reading)
        progress(min(start + CHUNK, len(records)), len(records))
    examples += with_mismatched(ratings, options.max_length)
    return examples


@dataclass(frozen=True)
class _Reading:
    """The tokenizer, options and findings that are used for all records."""

    options: TokenizeOptions
    findings: Findings
    encode: Encoder
    chat: ConversationReader
    marks: SplitMarks
    eos: int | None

    @classmethod
    def of(cls, tokenizer: Tokenizer, options: TokenizeOptions, findings: Findings) -> _Reading:
        return cls(
            options,
            findings,
            Encoder(tokenizer),
            _conversation_reader(tokenizer, options, findings),
            SplitMarks(tokenizer, findings),
            tokenizer.eos_token_id,
        )

    def ending(self, *, special: bool) -> SequenceEnding:
        """Return how a sequence ends: raw text (`special`) with EOS, a rendered chat as it is."""
        return SequenceEnding(self.options.max_length, self.eos if special else None)


def _conversation_reader(
    tokenizer: Tokenizer, options: TokenizeOptions, findings: Findings
) -> ConversationReader:
    tokens = [str(token) for token in tokenizer.added_tokens_encoder]
    settings = ChatOptions(options.train_on, options.reasoning)
    return ConversationReader(tokenizer, tokens, str(tokenizer.eos_token), settings, findings)


def _plain(records: Sequence[Record], reading: _Reading) -> Iterator[Example]:
    note = reading.findings.note
    for record, text in zip(records, _texts(records, reading), strict=True):
        place = place_of(record)
        if text.rejected:
            note(REJECTED_RECORDS, place, text.rejected)
            continue
        note(CUT, place, count=text.cut)
        note(SEVERAL_EOS, place, count=text.several_eos)
        lacking = text.example is None and not text.cut and not text.unplaced
        detail = _nothing_in(record, reading.options.train_on) if lacking else ""
        note(NO_OFFSETS if text.unplaced else NO_TARGET, place, detail, text.example is None)
        if text.example is not None:
            yield text.example


def _nothing_in(record: Record, train_on: str) -> str:
    """Say why a record has no target, although nothing of it was cut."""
    nothing = "the record has no text to learn"
    if not isinstance(record, MessagesRecord) or train_on not in ("all", "last"):
        return nothing
    answers = [turn for turn in record.messages if turn.get("role") == "assistant"]
    learned = [turn for turn in answers if turn.get("learned", True)]
    if record.messages and not answers:
        return f"{nothing}: no message has the role assistant"
    if any(turn.get("tool_calls") or turn.get("reasoning_content") for turn in learned):
        return f"{nothing}: the chat template does not write its tool calls or its reasoning"
    return nothing


def _add_preferences(
    examples: list[Example], records: Sequence[PreferenceRecord | RatedRecord], reading: _Reading
) -> list[Rating]:
    """Add preferences and return ratings; only completions are targets unless texts are scored."""
    options = replace(reading.options, completion_only=not reading.options.scored_whole)
    sides = [side for record in records for side in completions_of(record)]
    texts = _texts(sides, replace(reading, options=options))
    return assemble(examples, records, texts, reading.findings, rated=options.rated)


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
    weights: tuple[float, ...] = ()
    """Factor on the loss of each span; empty if all are 1."""
    weight: float = 1.0
    """Factor on the loss of the record."""
    ranges: tuple[Range, ...] = ()
    """Weights of ranges of the text."""

    def placed(self, place: str) -> PlacedText:
        """Return the text to encode, with the positions at which its targets begin and end."""
        edges = dict.fromkeys(edge for span in self.spans for edge in span)
        return PlacedText(self.text, place, tuple(edges))


def _passage(record: Record, reading: _Reading) -> _Passage:
    options = reading.options
    match record:
        case TextRecord(id=identity, text=text):
            span = ((0, len(text)),)
            return _Passage(identity, text, span, special=True, ranges=record.ranges)
        case CompletionRecord(id=identity, prompt=str(prompt), completion=str(completion)):
            text = prompt + completion
            start = len(prompt) if options.completion_only else 0
            targets = ((start, len(text)),) if completion else ()
            blank = bool(completion) and not completion.strip()
            reading.findings.note(EMPTY_ANSWERS, place_of(record), count=blank)
            ranges = tuple((len(prompt) + a, len(prompt) + b, w) for a, b, w in record.ranges)
            return _Passage(identity, text, targets, special=True, ranges=ranges)
        case CompletionRecord(prompt=prompt, completion=completion):
            turns = (*prompt, *completion)
            first = len(prompt)
        case MessagesRecord(messages=turns):
            first = 0
        case _:
            raise TypeError(type(record))
    conversation = Conversation(turns, record.tools, first, place_of(record))
    weights: tuple[float, ...] = ()
    if options.completion_only:
        text, found = reading.chat.read(conversation)
        spans = tuple((one.start, one.end) for one in found)
        given = tuple(one.weight for one in found)
        weights = given if any(one != 1 for one in given) else ()
    else:
        if any(TURN_WEIGHT in turn for turn in turns):
            raise DataError(
                f"{conversation.place}: a turn has a weight, but data.completion_only: false "
                "learns the conversation as one text; set data.completion_only: true, or remove "
                "the weights of turns"
            )
        text = reading.chat.whole(conversation)
        spans = ((0, len(text)),)
    reading.marks.note(text, conversation.place)
    reading.marks.note_inside(turns, conversation.place)
    return _Passage(record.id, text, spans, special=False, weights=weights)


def _texts(records: Sequence[Record], reading: _Reading) -> list[TokenizedText]:
    """Tokenize each record as one sequence, in their order."""
    found: dict[int, TokenizedText] = {}
    passages: dict[int, _Passage] = {}
    for number, record in enumerate(records):
        if isinstance(record, TokensRecord):
            found[number] = _given(record, reading.options)
            continue
        try:
            passage = _passage(record, reading)
        except RejectedConversation as error:
            why = str(error).removeprefix(f"{place_of(record)}: ")
            found[number] = TokenizedText(None, cut=False, rejected=why)
            continue
        passages[number] = replace(passage, place=record.place, weight=record.weight)
    for special in (False, True):
        group = [n for n, passage in passages.items() if passage.special is special]
        placed = [passages[n].placed(place_of(records[n])) for n in group]
        ending = reading.ending(special=special)
        encoded_texts = encoded_beginnings(
            reading.encode, placed, reading.options.max_length, special=special
        )
        for number, encoded in zip(group, encoded_texts, strict=True):
            marks = () if special else reading.marks.split_tokens
            found[number] = _tokenized(passages[number], encoded, ending, marks)
    return [found[number] for number in range(len(records))]


def _given(record: TokensRecord, options: TokenizeOptions) -> TokenizedText:
    """Return a record that is tokenized already, truncated; no EOS is added."""
    kept = slice(options.max_length)
    ids, cut = record.input_ids[kept], len(record.input_ids) > options.max_length
    whole = record.labels is None or not options.completion_only
    labels = list(ids) if whole or record.labels is None else record.labels[kept]
    if all(label == IGNORED for label in labels[1:]):
        return TokenizedText(None, cut)
    weights: tuple[float, ...] | None = None
    if record.weights is not None or record.weight != 1:
        each = record.weights or [1.0] * len(record.input_ids)
        weights = tuple(record.weight * one for one in each[kept])
    if weights is not None and all(one == 1 for one in weights):
        weights = None
    return TokenizedText(
        TextExample(record.id, ids, labels, weights=weights, place=record.place), cut
    )


def _tokenized(
    passage: _Passage, encoded: Encoded, ending: SequenceEnding, marks: Sequence[str]
) -> TokenizedText:
    ids, offsets = encoded.ids, encoded.offsets
    if encoded.refused:
        return TokenizedText(None, cut=False, rejected=encoded.refused)
    if offsets is None:
        return TokenizedText(None, cut=False, unplaced=True)
    closed = ending.close(ids)
    if closed.cut:
        kept = whole_tokens(passage.text, offsets, closed.kept, marks)
        closed = Closed([*ids[:kept], *closed.ids[closed.kept :]], kept, cut=True)
    wanted = tokens_within(passage.text, offsets[: closed.kept], passage.spans)
    # A truncated text does not end here, so its EOS is not a target.
    ends_here = bool(passage.spans) and not closed.cut
    wanted += [ends_here] * (len(closed.ids) - closed.kept)
    labels = [token if use else IGNORED for token, use in zip(closed.ids, wanted, strict=True)]
    # The first token cannot be predicted, because no token precedes it.
    if not passage.text or all(label == IGNORED for label in labels[1:]):
        return TokenizedText(None, closed.cut)
    weights = _token_weights(passage, offsets[: closed.kept], len(closed.ids))
    example = TextExample(passage.id, closed.ids, labels, weights=weights, place=passage.place)
    return TokenizedText(example, closed.cut, several_eos=closed.several)


def _token_weights(passage: _Passage, offsets: Offsets, count: int) -> tuple[float, ...] | None:
    """Return the factor on the loss of each of `count` tokens; None if all are 1.

    An EOS behind the text has the weight of the record. A token has the weight of the range in
    which it begins.
    """
    if not (passage.weights or passage.ranges) and passage.weight == 1:
        return None
    found = [passage.weight] * count
    for weight in dict.fromkeys(passage.weights):
        spans = zip(passage.spans, passage.weights, strict=True)
        mine = [span for span, own in spans if own == weight]
        for number, within in enumerate(tokens_within(passage.text, offsets, mine)):
            found[number] = passage.weight * weight if within else found[number]
    starts = [start for start, _, _ in passage.ranges]
    for number, (begin, end) in enumerate(offsets if starts else ()):
        # Some tokenizers count the space before a word as a part of its token.
        first = begin + (end - begin - len(passage.text[begin:end].lstrip()))
        at = bisect_right(starts, first) - 1
        if at >= 0 and first < passage.ranges[at][1]:
            found[number] = passage.weight * passage.ranges[at][2]
    return tuple(found)


def _pairs(pairs: list[PairRecord], reading: _Reading) -> Iterator[Example]:
    options, findings, ending = reading.options, reading.findings, reading.ending(special=True)
    texts = [text for pair in pairs for text in _pair_texts(pair, options)]
    encoded = encoded_beginnings(reading.encode, texts, options.max_length, special=True)
    for pair in pairs:
        whole = [next(encoded) for _ in _pair_texts(pair, options)]
        members = [ending.close(one.ids) for one in whole]
        if refused := next((one.refused for one in whole if one.refused), ""):
            findings.note(REJECTED_RECORDS, place_of(pair), refused)
            continue
        if not (pair.anchor.strip() and pair.positive.strip()):
            which = "positive" if pair.anchor.strip() else "anchor"
            findings.note(EMPTY_PAIR, place_of(pair), f"empty {which}")
            continue
        if options.scored and pair.score is None:
            findings.note(NO_SCORE, place_of(pair))
            continue
        if whole[0].offsets is None:
            findings.note(NO_OFFSETS, place_of(pair))
            continue
        findings.note(CUT, place_of(pair), count=any(member.cut for member in members))
        several = any(member.several for member in members)
        findings.note(SEVERAL_EOS, place_of(pair), count=several)
        _note_surplus(pair, options, findings)
        prompts = [
            prompt_tokens((full.offsets or [])[: member.kept], len(before))
            for full, member, before in zip(whole, members, _before(pair, options), strict=True)
        ]
        if any(
            member.cut and prompt == member.kept
            for prompt, member in zip(prompts, members, strict=True)
        ):
            # Nothing of a text is left behind its instruction.
            findings.note(NO_TARGET, place_of(pair))
            continue
        if options.scored and pair.negatives:
            findings.note(UNUSED_NEGATIVES, place_of(pair))
        anchor, positive, *negatives = (member.ids for member in members)
        score = None if pair.score is None else mapped(pair.score, options.score_range)
        yield PairExample(
            pair.id,
            anchor,
            positive,
            tuple(negatives),
            pair.label,
            prompts[0],
            score,
            tuple(prompts[1:]) if any(prompts[1:]) else (),
            weight=pair.weight,
            place=pair.place,
        )


def _note_surplus(pair: PairRecord, options: TokenizeOptions, findings: Findings) -> None:
    """Count a pair with more negatives than are used, unless the configuration uses none."""
    surplus = len(pair.negatives) > options.hard_negatives > 0
    detail = f"{len(pair.negatives)} negatives, of which {options.hard_negatives} are used"
    findings.note(SURPLUS_NEGATIVES, place_of(pair), detail, surplus)


def _pair_texts(pair: PairRecord, options: TokenizeOptions) -> Iterator[PlacedText]:
    place = place_of(pair)
    texts = (pair.anchor, pair.positive, *pair.negatives[: options.hard_negatives])
    for before, text in zip(_before(pair, options), texts, strict=True):
        yield PlacedText(before + text, place, (len(before),) if before else ())


def _before(pair: PairRecord, options: TokenizeOptions) -> list[str]:
    """Return the instruction before each text of a pair: anchor, positive, hard negatives."""
    passages = 1 + len(pair.negatives[: options.hard_negatives])
    return [options.instruction, *[options.passage_instruction] * passages]
