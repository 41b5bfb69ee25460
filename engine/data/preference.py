"""Completions that a person judged: preferences of one over another, and rated ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .examples import (
    IGNORED,
    PreferenceExample,
    RatedExample,
    TextExample,
    Tokenized,
    TokenizedText,
)
from .formats import CompletionRecord, PreferenceRecord, RatedRecord

Judged = PreferenceRecord | RatedRecord
Rating = tuple[TextExample, bool]
"""A completion, and whether it is wanted."""


def sides_of(record: Judged) -> tuple[CompletionRecord, ...]:
    """The completions of a record: the chosen and the rejected one, or the one there is."""
    return (record.text,) if isinstance(record, RatedRecord) else (record.chosen, record.rejected)


def judge(
    result: Tokenized,
    records: Sequence[Judged],
    texts: Sequence[TokenizedText],
    *,
    rated: bool,
) -> list[Rating]:
    """Put tokenized completions back together with what was said of them.

    Args:
        result: takes the preferences, and counts what was cut or dropped.
        records: in the order of the texts.
        texts: the sides of all records.
        rated: take preferences apart into a wanted and an unwanted completion.

    Returns:
        The ratings, for `with_mismatched` when all are known.
    """
    following = iter(texts)
    ratings: list[Rating] = []
    for record in records:
        sides = [next(following) for _ in sides_of(record)]
        found = [side.example for side in sides if side.example is not None]
        result.cut += any(side.cut for side in sides)
        if len(found) < len(sides):
            result.unlabelled += 1
        elif isinstance(record, RatedRecord):
            ratings.append((found[0], record.desirable))
        elif found[0].input_ids == found[1].input_ids:
            result.alike += 1
        elif rated:
            ratings += [(found[0], True), (found[1], False)]
        else:
            result.examples.append(PreferenceExample(record.id, found[0], found[1]))
    return ratings


def with_mismatched(ratings: Sequence[Rating], max_length: int) -> Iterator[RatedExample]:
    """Every completion, with its prompt before the next completion of another record.

    Args:
        ratings: all there are.
        max_length: tokens at most of a prompt with another record's completion.
    """
    for index, (text, desirable) in enumerate(ratings):
        others = (ratings[(index + step) % len(ratings)][0] for step in range(1, len(ratings)))
        other = next((one for one in others if one.id != text.id), text)
        yield RatedExample(text.id, text, desirable, _crossed(text, other, max_length))


def _crossed(text: TextExample, other: TextExample, max_length: int) -> TextExample:
    """The prompt of one text before the completion of another, cut to fit."""
    mine, theirs = _prompt_tokens(text), _prompt_tokens(other)
    ids = [*text.input_ids[:mine], *other.input_ids[theirs:]][:max_length]
    labels = [*[IGNORED] * mine, *other.labels[theirs:]][:max_length]
    return TextExample(text.id, ids, labels)


def _prompt_tokens(text: TextExample) -> int:
    """Tokens before the first target."""
    return next(n for n, label in enumerate(text.labels) if label != IGNORED)
