"""Assemble preferences and rated completions, with mismatched ones for the KL term of kto."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ...config.data_reasons import (
    CUT,
    NO_OFFSETS,
    NO_TARGET,
    REJECTED_RECORDS,
    SAME_COMPLETIONS,
    SEVERAL_EOS,
)
from ..findings import Findings
from ..records.formats import CompletionRecord, PreferenceRecord, RatedRecord, place_of
from .examples import (
    IGNORED,
    Example,
    PreferenceExample,
    RatedExample,
    TextExample,
    TokenizedText,
)

PreferenceData = PreferenceRecord | RatedRecord


class Rating(NamedTuple):
    """A rated completion, before its mismatched one is known."""

    text: TextExample
    desirable: bool
    weight: float = 1.0


def completions_of(record: PreferenceData) -> tuple[CompletionRecord, ...]:
    """Return the completions of a record: chosen and rejected, or the single rated one."""
    return (record.text,) if isinstance(record, RatedRecord) else (record.chosen, record.rejected)


def assemble(
    examples: list[Example],
    records: Sequence[PreferenceData],
    texts: Sequence[TokenizedText],
    findings: Findings,
    *,
    rated: bool,
) -> list[Rating]:
    """Add preferences to `examples` and return rated completions.

    Args:
        examples: Receives the preferences.
        records: The records in the order of the texts.
        texts: The tokenized completions of all records.
        findings: Receives the truncated and dropped records.
        rated: Split every preference into a desirable and an undesirable completion.

    Returns:
        The rated completions, for `with_mismatched` when all are known.
    """
    following = iter(texts)
    ratings: list[Rating] = []
    for record in records:
        sides = [next(following) for _ in completions_of(record)]
        found = [side.example for side in sides if side.example is not None]
        findings.note(CUT, place_of(record), count=any(side.cut for side in sides))
        several = any(side.several_eos for side in sides)
        findings.note(SEVERAL_EOS, place_of(record), count=several)
        if rejected := next((side.rejected for side in sides if side.rejected), ""):
            findings.note(REJECTED_RECORDS, place_of(record), rejected)
        elif len(found) < len(sides):
            unplaced = any(side.unplaced for side in sides)
            findings.note(NO_OFFSETS if unplaced else NO_TARGET, place_of(record))
        elif isinstance(record, RatedRecord):
            ratings.append(Rating(found[0], record.desirable, record.weight))
        elif found[0].input_ids == found[1].input_ids:
            findings.note(SAME_COMPLETIONS, place_of(record))
        elif rated:
            ratings += [
                Rating(found[0], True, record.weight),
                Rating(found[1], False, record.weight),
            ]
        else:
            pair = PreferenceExample(
                record.id, found[0], found[1], record.margin, weight=record.weight
            )
            examples.append(pair)
    return ratings


def with_mismatched(ratings: Sequence[Rating], max_length: int) -> Iterator[RatedExample]:
    """Yield every rated completion with a mismatched one: its prompt and another's completion.

    If there is no other record, its own completion is used.

    Args:
        ratings: All rated completions.
        max_length: Largest number of tokens of a mismatched sequence.
    """
    for index, (text, desirable, weight) in enumerate(ratings):
        others = (ratings[(index + step) % len(ratings)][0] for step in range(1, len(ratings)))
        other = next((one for one in others if one.id != text.id), text)
        crossed = _crossed(text, other, max_length)
        yield RatedExample(text.id, text, desirable, crossed, weight=weight)


def _crossed(text: TextExample, other: TextExample, max_length: int) -> TextExample:
    """Join the prompt of one text and the completion of another, truncated to `max_length`.

    Its id is that of the other one.
    """
    mine, theirs = _prompt_tokens(text), _prompt_tokens(other)
    ids = [*text.input_ids[:mine], *other.input_ids[theirs:]][:max_length]
    labels = [*[IGNORED] * mine, *other.labels[theirs:]][:max_length]
    return TextExample(other.id, ids, labels)


def _prompt_tokens(text: TextExample) -> int:
    """Return the number of tokens before the first target."""
    return next(n for n, label in enumerate(text.labels) if label != IGNORED)
