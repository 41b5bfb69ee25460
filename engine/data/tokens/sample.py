"""Show records as the model sees them: decoded text, targets, tokens and what was changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
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
    shown = [_text(part, decoder, most, tokens=tokens) for part in texts]
    notes = [f"{one.reason.text}{f' ({one.detail})' if one.detail else ''}" for one in findings]
    return SampleRecord(id=record.id, place=place_of(record), texts=shown, notes=notes)


@dataclass(frozen=True)
class _Part:
    """One sequence of a record."""

    name: str
    ids: list[int]
    labels: list[int]
    weights: Sequence[float] = ()
    """Factor on the loss of each token; empty if all are 1."""

    def weight(self, place: int) -> float:
        """Return the weight of the target at a place; 1 if there is none."""
        learned = self.labels[place] != IGNORED
        return self.weights[place] if self.weights and learned else 1.0


def _parts(example: Example) -> Iterator[_Part]:
    """Yield the sequences of an example, with its hard negatives, as the model sees them.

    The text of a rated example with another prompt's answer is left out.
    """
    match example:
        case TextExample():
            yield _learned("text", example)
        case PairExample(anchor=anchor, positive=positive, negatives=negatives, prompt=prompt):
            prompts = example.passage_prompts or (0,) * (1 + len(negatives))
            yield _Part("anchor", anchor, _behind(anchor, prompt))
            yield _Part("positive", positive, _behind(positive, prompts[0]))
            for number, (ids, before) in enumerate(zip(negatives, prompts[1:], strict=True), 1):
                yield _Part(f"negative {number}", ids, _behind(ids, before))
        case PreferenceExample(chosen=chosen, rejected=rejected, margin=margin):
            better = "chosen" if margin is None else f"chosen, margin {margin:g}"
            yield _learned(better, chosen)
            yield _learned("rejected", rejected)
        case RatedExample(text=text, desirable=desirable):
            yield _learned("desirable" if desirable else "undesirable", text)
        case PackedExample(documents=documents):
            for document in documents:
                yield _learned("text", document)


def _behind(ids: list[int], prompt: int) -> list[int]:
    """Return labels for the tokens behind an instruction of `prompt` tokens."""
    return [IGNORED] * prompt + ids[prompt:]


def _predicted(labels: list[int]) -> list[int]:
    """Return labels with `IGNORED` as the first one: no token precedes it to predict it from."""
    return [IGNORED, *labels[1:]]


def _learned(name: str, text: TextExample) -> _Part:
    """Return a sequence with the labels and weights of its targets."""
    return _Part(name, text.input_ids, _predicted(text.labels), text.weights or ())


def _text(part: _Part, decoder: Decoder, most: int | None, *, tokens: bool) -> SampleText:
    spans, left_out = _shortened(_spans(part, decoder), most)
    names = decoder.convert_ids_to_tokens(part.ids) if tokens else []
    rows = enumerate(zip(part.ids, names, part.labels, strict=False))
    return SampleText(
        name=part.name,
        spans=spans,
        tokens=len(part.ids),
        learned=sum(label != IGNORED for label in part.labels),
        left_out=left_out,
        token_list=[SampleToken(*token, part.weight(place)) for place, token in rows],
    )


def _spans(part: _Part, decoder: Decoder) -> list[SampleSpan]:
    """Return the text in runs of targets of one weight and of other tokens.

    Whole beginnings are decoded and compared, because the text of a token depends on those before
    it: some tokenizers strip the first space, and a character can consist of several tokens.
    """
    ids = part.ids
    kinds = [(label != IGNORED, part.weight(n)) for n, label in enumerate(part.labels)]
    changes = [n for n in range(1, len(ids)) if kinds[n] != kinds[n - 1]]
    found, before, start = [], "", 0
    for end in [*changes, len(ids)] if ids else []:
        text = decoder.decode(
            ids[:end], skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        shared = _shared(before, text)
        found.append(SampleSpan(text[shared:], *kinds[start]))
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
        kept.append(SampleSpan(span.text[:room], span.learned, span.weight))
        room -= len(span.text)
        if room <= 0:
            break
    return kept, total - most
