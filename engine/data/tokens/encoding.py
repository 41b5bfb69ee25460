"""Token ids of texts, and the characters of each token, for any tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from .alignment import AlignedTokenizer, Aligner

Numbers = NDArray[np.int64]
Offsets = list[tuple[int, int]]
"""First character of each token and the one behind it; equal for tokens without characters."""
_LONG_TEXT = 256_000
"""Number of characters up to which every text is encoded as a whole."""
_LONGEST_TOKEN = 64
"""Number of characters that a token hardly has on average over a text."""
_LONGEST_MARK = 64
"""Number of tokens at the end of a beginning that may be a part of a cut special token."""
_AT_ONCE = 4_000_000
"""Number of characters that are encoded at once; a token takes about 150 bytes meanwhile."""


class EncodingTokenizer(AlignedTokenizer, Protocol):
    """The part of a transformers tokenizer that is used to encode texts."""

    is_fast: bool
    bos_token_id: int | None


@dataclass(frozen=True)
class PlacedText:
    """A text to encode, with the place of its record."""

    text: str
    place: str
    """Where its record is stored, for error messages."""
    edges: tuple[int, ...] = ()
    """Characters at which targets begin or end; offsets must be exact there."""

    def beginning(self, most: int) -> PlacedText:
        """Return the text with at most this number of characters."""
        if len(self.text) <= most:
            return self
        return PlacedText(self.text[:most], self.place, tuple(e for e in self.edges if e <= most))


@dataclass(frozen=True)
class Encoded:
    """A tokenized text; it is not truncated, and has no two BOS at its beginning."""

    ids: list[int]
    offsets: Offsets | None
    """None if the tokens cannot be placed in the text exactly."""
    refused: str = ""
    """Why the tokenizer does not take the text; empty if it does."""


class Encoder:
    """Encodes texts; for a tokenizer without offsets the characters of each token are searched for.

    Args:
        tokenizer: The tokenizer of the model.
    """

    def __init__(self, tokenizer: EncodingTokenizer) -> None:
        self._tokenizer = tokenizer
        self._aligner = None if tokenizer.is_fast else Aligner(tokenizer)

    def __call__(self, placed: Sequence[PlacedText], *, special: bool) -> Iterator[Encoded]:
        """Yield the encoded texts in their order.

        Args:
            placed: The texts.
            special: Whether the tokenizer adds special tokens.

        A text that the tokenizer does not take has no tokens, and says why.

        Raises:
            DataError: The tokenizer fails for the texts together, but for none of them alone.
        """
        if not placed:
            return
        # No warning about long texts: they are truncated later.
        options: dict[str, Any] = {"truncation": False, "verbose": False}
        if self._aligner is None:
            options["return_offsets_mapping"] = True

        def call(texts: list[str]) -> Mapping[str, Any]:
            return self._tokenizer(texts, add_special_tokens=special, **options)

        try:
            encoded = call([one.text for one in placed])
        except Exception as error:  # noqa: BLE001  # tokenizers raise any exception
            refused = _refused_texts(placed, call, error)
            rest = [one for one, why in zip(placed, refused, strict=True) if not why]
            taken = self(rest, special=special)
            yield from (Encoded([], None, why) if why else next(taken) for why in refused)
            return
        bos = self._tokenizer.bos_token_id if special else None
        placements = self._offsets(placed, encoded)
        for ids, offsets in zip(encoded["input_ids"], placements, strict=True):
            # The text was rendered with a BOS of its own, as chat templates do.
            twice = bos is not None and ids[:2] == [bos, bos]
            yield Encoded(ids[twice:], offsets and offsets[twice:])

    def _offsets(
        self, placed: Sequence[PlacedText], encoded: Mapping[str, Any]
    ) -> Iterator[Offsets | None]:
        if self._aligner is None:
            yield from encoded["offset_mapping"]
            return
        for one, ids in zip(placed, encoded["input_ids"], strict=True):
            yield self._aligner.offsets(one.text, ids, one.edges)


def encoded_beginnings(
    encode: Encoder, placed: Sequence[PlacedText], max_length: int, *, special: bool
) -> Iterator[Encoded]:
    """Yield the encoded texts in their order; of a very long one as many tokens as are used.

    A text with far more characters than `max_length` tokens have is encoded from its beginning
    alone, unless that has too few tokens: a tokenizer looks at neighbouring characters, so what
    stands far behind the last token that is used does not change it. The memory for a batch of
    texts is bounded in this way.

    Args:
        encode: Encodes texts.
        placed: The texts.
        max_length: Number of tokens that are used.
        special: Whether the tokenizer adds special tokens.
    """
    most = max(_LONG_TEXT, _LONGEST_TOKEN * max_length)
    for group in _groups(placed, most):
        found = encode([one.beginning(most) for one in group], special=special)
        for one, encoded in zip(group, found, strict=True):
            beyond = encoded.ids[max_length:-_LONGEST_MARK]
            # The same token to the end may be EOS, which is removed from the end of a text.
            if len(one.text) > most and not encoded.refused and len(set(beyond)) < 2:
                yield from encode([one], special=special)
            else:
                yield encoded


def _groups(placed: Sequence[PlacedText], most: int) -> Iterator[list[PlacedText]]:
    """Yield the texts in groups that have few enough characters to encode at once."""
    group: list[PlacedText] = []
    characters = 0
    for one in placed:
        length = min(len(one.text), most)
        if group and characters + length > _AT_ONCE:
            yield group
            group, characters = [], 0
        group.append(one)
        characters += length
    if group:
        yield group


def _refused_texts(
    placed: Sequence[PlacedText], call: Callable[[list[str]], Any], error: Exception
) -> list[str]:
    """Return for each text of a batch that failed why it fails alone; empty if it does not.

    Raises:
        DataError: No text fails alone.
    """
    refused = [_refusal(one.text, call) for one in placed]
    if not any(refused):
        raise DataError(
            f"{placed[0].place}: the tokenizer fails on the batch of records that begins here, but "
            f"on none of them alone: {error}; check these records"
        )
    return refused


def _refusal(text: str, call: Callable[[list[str]], Any]) -> str:
    """Return why the tokenizer does not take a text; empty if it does."""
    try:
        call([text])
    except Exception as error:  # noqa: BLE001  # tokenizers raise any exception
        lone = any("\ud800" <= character <= "\udfff" for character in text)
        what = "a lone surrogate, half of a character" if lone else " ".join(str(error).split())
        return f"the tokenizer cannot read this text: {what}; correct the record, or remove it"
    return ""


def tokens_within(text: str, offsets: Offsets, spans: Sequence[tuple[int, int]]) -> list[bool]:
    """Return for each token whether at least one of its characters is inside one of the spans.

    Some tokenizers leave white space out of their offsets, so that a token of white space has no
    characters. White space between two tokens is counted as part of the later token.

    Args:
        text: The text.
        offsets: (start, end) of the characters of each token.
        spans: Parts of the text.
    """
    if not offsets or not spans:
        return [False] * len(offsets)
    begin, end = np.array(offsets, dtype=np.int64).T
    start = _with_white_space(text, begin, end)
    starts, stops = np.array(sorted(spans), dtype=np.int64).T
    stops = np.maximum.accumulate(stops)
    next_span = np.searchsorted(stops, start, side="right")
    reaches = np.append(starts, len(text) + 1)[next_span] < end
    within: list[bool] = (reaches & (start < end)).tolist()
    return within


def _with_white_space(text: str, begin: Numbers, end: Numbers) -> Numbers:
    """Return the starts of tokens moved back over white space that belongs to no token."""
    start = begin.copy()
    reached = np.concatenate(([0], np.maximum.accumulate(end)[:-1]))
    for number in np.flatnonzero((reached < begin) & (reached < end)):
        if not text[reached[number] : begin[number]].strip():
            start[number] = reached[number]
    return start


def whole_tokens(text: str, offsets: Offsets, kept: int, marks: Sequence[str]) -> int:
    """Return how many tokens of a truncated text to keep, so that no character or mark is cut.

    Args:
        text: The text.
        offsets: (start, end) of the characters of each token of the whole text.
        kept: Number of tokens up to the length limit.
        marks: Special tokens of the chat template that the tokenizer splits into several tokens.
    """
    reached = offsets[kept - 1][1] if kept else 0
    limit = reached
    for mark in marks:
        start = text.rfind(mark, max(0, reached - len(mark) + 1), reached + len(mark) - 1)
        limit = min(limit, start) if 0 <= start < reached else limit
    while kept and (offsets[kept - 1][1] > limit or _same_character(offsets, kept)):
        kept -= 1
    return kept


def _same_character(offsets: Offsets, number: int) -> bool:
    """Whether a token and the one before it are parts of the bytes of one character."""
    start, end = offsets[number - 1]
    return number < len(offsets) and offsets[number] == (start, end) and end - start == 1
