"""Tokenize the records of all sources, with the findings and a sample of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from ..config.data_reasons import REJECTED_RECORDS
from ..config.memory.contrastive_candidates import hard_negatives_used
from ..config.schema import RunConfig
from ..config.tasks import SCORED_KINDS
from ..errors import DataError
from ..protocol.data.sample import SampleRecord
from .findings import Findings
from .reading import Progress, SourceRecords, SourceSummary
from .records.formats import Record
from .screening.trainable import all_dropped
from .tokens.examples import Example
from .tokens.sample import MOST_CHARACTERS, MOST_RECORDS, Decoder, Learn, sample_records
from .tokens.tokenize import TokenizeOptions, Tokenizer, tokenize_records


class DataTokenizer(Tokenizer, Decoder, Protocol):
    """A tokenizer that also decodes."""


@dataclass(frozen=True)
class TokenizedData:
    """The tokenized records of all sources."""

    parts: list[list[Example]]
    """The examples of each training source; of streamed data, only those that a check reads."""
    eval: list[Example]
    findings: Findings
    """What was dropped, cut, masked, ignored or guessed."""
    sources: list[SourceSummary]
    sample: list[SampleRecord]
    """The first training records as the model sees them."""

    @property
    def train(self) -> list[Example]:
        """The examples of all training sources, in their order."""
        return [example for part in self.parts for example in part]


def tokenize_data(
    config: RunConfig, records: SourceRecords, tokenizer: DataTokenizer, progress: Progress
) -> TokenizedData:
    """Tokenize the records of all sources.

    Raises:
        DataError: No record of a source can be learned, or most are rejected.
    """
    options, findings = tokenize_options(config), Findings()
    findings.add(records.findings)
    report = partial(progress, "tokenizing training data")
    paths = [source.path for source in config.data.sources][: len(records.train)]
    parts = [
        _tokenized(part, tokenizer, options, findings, report, path)
        for part, path in zip(records.train, paths, strict=True)
    ]
    report = partial(progress, "tokenizing evaluation data")
    evaluation = _tokenized(records.eval, tokenizer, options, findings, report, config.data.eval)
    sample = sample_of(config, records, tokenizer)
    return TokenizedData(parts, evaluation, findings, records.sources, sample)


def sample_of(
    config: RunConfig, records: SourceRecords, tokenizer: DataTokenizer
) -> list[SampleRecord]:
    """Return the first records of each training source as the model sees them.

    They are at most `MOST_RECORDS` in all.

    Raises:
        DataError: The chat template has an error of its own.
    """
    each = -(-MOST_RECORDS // max(1, len(records.train)))
    first = [record for part in records.train for record in part[:each]][:MOST_RECORDS]
    learn = learner(tokenizer, tokenize_options(config))
    return sample_records(first, learn, tokenizer, most_characters=MOST_CHARACTERS)


def learner(tokenizer: Tokenizer, options: TokenizeOptions) -> Learn:
    """Return the function that tokenizes one record for a sample."""

    def learn(record: Record, findings: Findings) -> list[Example]:
        return tokenize_records([record], tokenizer, options, findings, lambda done, total: None)

    return learn


def _tokenized(
    records: Sequence[Record],
    tokenizer: Tokenizer,
    options: TokenizeOptions,
    findings: Findings,
    progress: Callable[[float, float], None],
    source: str | None,
) -> list[Example]:
    """Tokenize the records of a source.

    `source` names it in an error. None stands for records held out, of which all may be dropped.

    Raises:
        DataError: No record of the source can be learned, or most are rejected.
    """
    own = Findings()
    examples = tokenize_records(records, tokenizer, options, own, progress)
    _require_few_rejected(own, len(records))
    if source is not None and not examples:
        raise DataError(all_dropped(source, own, options.max_length))
    findings.add(own)
    return examples


def _require_few_rejected(findings: Findings, records: int) -> None:
    """Raise if the chat template or the tokenizer rejects most records.

    Raises:
        DataError: The first such record, why it is rejected, and how many there are.
    """
    for one in findings:
        if one.reason is REJECTED_RECORDS and 2 * one.count > records:
            more = f"; {one.count:,} of {records:,} records are rejected" if one.count > 1 else ""
            raise DataError(f"{one.place}: {one.detail}{more}")


def tokenize_options(config: RunConfig) -> TokenizeOptions:
    """Return the settings of tokenization of a run."""
    return TokenizeOptions(
        max_length=config.data.max_length,
        completion_only=config.data.completion_only,
        train_on=config.data.train_on,
        reasoning=config.data.reasoning,
        instruction=config.contrastive.instruction,
        passage_instruction=config.contrastive.passage_instruction,
        hard_negatives=hard_negatives_used(config),
        scored=config.task == "contrastive" and config.contrastive.kind in SCORED_KINDS,
        score_range=config.contrastive.score_range,
        scored_whole=config.task == "reward",
        rated=config.task == "kto",
    )
