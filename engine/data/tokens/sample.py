"""Show records as the model sees them: decoded text, targets, tokens and what was changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from ...protocol.data.sample import SampleRecord, SampleSpan, SampleText, SampleToken
from ..findings import Findings
from ..records.formats import Record, place_of
from .examples import (
    IGNORED,
    Example,
    PackedExample,
    PairExample,
    PreferenceExample,
    RatedExample,
    TextExample,
)

MOST_RECORDS = 20
"""Most records in the sample of a run."""
MOST_CHARACTERS = 8_000
"""Most characters of one text in the sample of a run."""

Learn = Callable[[Record, Findings], list[Example]]
"""Tokenizes one record."""


class Decoder(Protocol):
    """The part of a transformers tokenizer that turns token ids into text."""

    def decode(self, token_ids: list[int], **options: bool) -> str:
        """Return the text of token ids."""
        ...

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        """Return the vocabulary entries of token ids."""
        ...


def sample_records(
    records: Sequence[Record],
    learn: Learn,
    decoder: Decoder,
    *,
    most_characters: int | None = None,
    tokens: bool = False,
) -> list[SampleRecord]:
    """Return records as the model sees them.

    Args:
        records: The records.
        learn: Tokenizes one record.
        decoder: The tokenizer that `learn` uses.
        most_characters: Number of characters of a text to keep; None keeps all.
        tokens: Whether to list every token.

    Raises:
        DataError: `learn` cannot tokenize a record.
    """
    return [_sampled(one, learn, decoder, most_characters, tokens=tokens) for one in records]


def _sampled(
    record: Record, learn: Learn, decoder: Decoder, most: int | None, *, tokens: bool
) -> SampleRecord:
    findings = Findings()
    texts = [part for example in learn(record, findings) for part in _parts(example)]
    shown = [_text(name, ids, labels, decoder, most, tokens=tokens) for name, ids, labels in texts]
    notes = [f"{one.reason.text}{f' ({one.detail})' if one.detail else ''}" for one in findings]
    return SampleRecord(id=record.id, place=place_of(record), texts=shown, notes=notes)


_Part = tuple[str, list[int], list[int]]
"""Name, token ids and labels of one sequence."""


def _parts(example: Example) -> Iterator[_Part]:
    """Yield the sequences of an example, with its hard negatives, as the model sees them.

    The text of a rated example with another prompt's answer is left out.
    """
    match example:
        case TextExample(input_ids=ids, labels=labels):
            yield "text", ids, _predicted(labels)
        case PairExample(anchor=anchor, positive=positive, negatives=negatives, prompt=prompt):
            prompts = example.passage_prompts or (0,) * (1 + len(negatives))
            yield "anchor", anchor, _behind(anchor, prompt)
            yield "positive", positive, _behind(positive, prompts[0])
            for number, (ids, before) in enumerate(zip(negatives, prompts[1:], strict=True), 1):
                yield f"negative {number}", ids, _behind(ids, before)
        case PreferenceExample(chosen=chosen, rejected=rejected, margin=margin):
            better = "chosen" if margin is None else f"chosen, margin {margin:g}"
            yield better, chosen.input_ids, _predicted(chosen.labels)
            yield "rejected", rejected.input_ids, _predicted(rejected.labels)
        case RatedExample(text=text, desirable=desirable):
            name = "desirable" if desirable else "undesirable"
            yield name, text.input_ids, _predicted(text.labels)
        case PackedExample(documents=documents):
            for document in documents:
                yield "text", document.input_ids, _predicted(document.labels)


def _behind(ids: list[int], prompt: int) -> list[int]:
    """Return labels for the tokens behind an instruction of `prompt` tokens."""
    return [IGNORED] * prompt + ids[prompt:]


def _predicted(labels: list[int]) -> list[int]:
    """Return labels with `IGNORED` as the first one: no token precedes it to predict it from."""
    return [IGNORED, *labels[1:]]


def _text(
    name: str,
    ids: list[int],
    labels: list[int],
    decoder: Decoder,
    most: int | None,
    *,
    tokens: bool,
) -> SampleText:
    learned = [label != IGNORED for label in labels]
    spans, left_out = _shortened(_spans(ids, learned, decoder), most)
    names = decoder.convert_ids_to_tokens(ids) if tokens else []
    listed = [SampleToken(*token) for token in zip(ids, names, labels, strict=False)]
    return SampleText(
        name=name,
        spans=spans,
        tokens=len(ids),
        learned=sum(learned),
        left_out=left_out,
        token_list=listed,
    )


def _spans(ids: list[int], learned: list[bool], decoder: Decoder) -> list[SampleSpan]:
    """Return the text in runs of targets and other tokens.

    Whole beginnings are decoded and compared, because the text of a token depends on those before
    it: some tokenizers strip the first space, and a character can consist of several tokens.
    """
    changes = [n for n in range(1, len(ids)) if learned[n] != learned[n - 1]]
    found, before, start = [], "", 0
    for end in [*changes, len(ids)] if ids else []:
        text = decoder.decode(
            ids[:end], skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        shared = _shared(before, text)
        found.append(SampleSpan(text[shared:], learned[start]))
        before, start = text, end
    return found


def _shared(one: str, other: str) -> int:
    """Return the number of characters with which both texts begin."""
    if other.startswith(one):
        return len(one)
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (mine, theirs) in pairs if mine != theirs), min(len(one), len(other)))


def _shortened(spans: list[SampleSpan], most: int | None) -> tuple[list[SampleSpan], int]:
    """Return the spans within the first `most` characters, and how many characters are left out.

    None as `most` keeps all.
    """
    total = sum(len(span.text) for span in spans)
    if most is None or total <= most:
        return spans, 0
    kept, room = [], most
    for span in spans:
        kept.append(SampleSpan(span.text[:room], span.learned))
        room -= len(span.text)
        if room <= 0:
            break
    return kept, total - most
