"""Load the configured data as tokenized training and evaluation examples, or as a stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ..config.data_reasons.reason import EVERYTHING
from ..config.model_limits import UNLIMITED, ModelLimits
from ..config.schema import RunConfig
from ..errors import DataError
from ..protocol.data.sample import SampleRecord
from .batches.leave_out import LeaveOut
from .batches.mixing import ranges_of
from .batches.sampler import Mix
from .cache.hashes import file_hashes
from .cache.token_cache import TokenCache, cached_data
from .findings import Findings
from .mix_plan import first_weights
from .reading import Progress, SourceRecords, SourceSummary, read_records
from .screening.duplicates import deduplicated
from .screening.input_limits import require_pad_row
from .screening.trainable import require_trainable
from .streams import first_streamed, streaming_facts
from .tokenized import DataTokenizer, TokenizedData, sample_of, tokenize_data
from .tokens.examples import Example, PackedExample, PairExample, TextExample, has_weight
from .tokens.packing import pack_examples
from .tokens.sample import MOST_RECORDS
from .tokens.scores import score_facts

__all__ = ["Example", "ExampleSets", "PairExample", "TextExample", "load_examples"]


@dataclass(frozen=True)
class ExampleSets:
    """The training and evaluation examples of a run."""

    train: list[Example]
    eval: list[Example]
    facts: dict[str, str]
    """Facts about the data, shown when the run starts, such as `{"train records": "3,512"}`."""
    findings: Findings
    """What was dropped, cut, masked, ignored or guessed."""
    sources: list[SourceSummary]
    """What was read from each source; of streamed sources only what a check has read."""
    sample: list[SampleRecord]
    """The first training records as the model sees them."""
    mix: Mix | None = None
    """How several sources make up an epoch; None for a single source."""
    streamed: bool = False
    """Whether the training data are read during training; `train` is empty then."""

    @property
    def weighted(self) -> bool:
        """Whether the loss of a training record, or of a part of it, has another weight than 1."""
        return any(map(has_weight, self.train))

    @property
    def per_epoch(self) -> int | None:
        """Number of examples per epoch; None for streamed data."""
        if self.streamed:
            return None
        return sum(self.mix.shares) if self.mix else len(self.train)


def load_examples(
    config: RunConfig,
    tokenizer: DataTokenizer,
    progress: Progress,
    *,
    accepted: bool = False,
    cache: TokenCache | None = None,
    limits: ModelLimits = UNLIMITED,
) -> ExampleSets:
    """Read, split and tokenize the configured data.

    Args:
        config: The run; `task` and the sections `data` and `contrastive` are used.
        tokenizer: The tokenizer of the model.
        progress: Called with (label, done, total).
        accepted: Whether the user has accepted the data as they are, as for a run that is resumed.
        cache: Keeps the tokenized data for other processes; None keeps nothing.
        limits: Limits of the model for its input.

    Raises:
        DataError: The data have no usable record, most are invalid, nothing could be learned,
            `data.quarantine` names an unknown sample or all of a source, or a finding needs
            consent.
    """
    sets = examine_examples(config, tokenizer, progress, cache, limits, accepted=accepted)
    sets.findings.require_consent((EVERYTHING,) if accepted else config.data.accept)
    return sets


def examine_examples(
    config: RunConfig,
    tokenizer: DataTokenizer,
    progress: Progress,
    cache: TokenCache | None = None,
    limits: ModelLimits = UNLIMITED,
    *,
    accepted: bool = False,
) -> ExampleSets:
    """Load examples as `load_examples` does, but without refusing findings that need consent.

    With `accepted`, two checks are left out as well: whether the records can be trained on, and
    whether the ids in `data.quarantine` can be kept out. None as `cache` keeps nothing.

    Raises:
        DataError: The data have no usable record, most are invalid, nothing could be learned, or
            `data.quarantine` names an unknown sample or all of a source.
    """
    make = partial(_tokenize_all, config, tokenizer, progress)
    if cache is None or config.data.streaming:
        found, known = make(), False
    else:
        found, known = cached_data(config, tokenizer, cache, make)
    require_pad_row(tokenizer.pad_token_id, limits)
    if not accepted:
        require_trainable(config, found.train, found.eval, limits, found.findings)
    sets = _example_sets(config, found, {"tokenized data": "from cache"} if known else {})
    if not accepted:
        require_quarantine(config, sets)
    return sets


def require_quarantine(config: RunConfig, sets: ExampleSets) -> None:
    """Refuse a quarantine in the configuration that the data cannot obey.

    Raises:
        DataError: a sample is unknown, or none of a source would be left.
    """
    if config.data.kept_out:
        counts = sets.mix.counts if sets.mix else (len(sets.train),)
        if reason := LeaveOut(sets.train, ranges_of(counts)).why_not(config.data.kept_out):
            raise DataError(f"data.quarantine: {reason}")


def _tokenize_all(config: RunConfig, tokenizer: DataTokenizer, progress: Progress) -> TokenizedData:
    records = read_all(config, progress)
    if not config.data.streaming:
        return tokenize_data(config, records, tokenizer, progress)
    found = tokenize_data(config, records, tokenizer, progress)
    streamed = first_streamed(config, MOST_RECORDS)
    return replace(found, sample=sample_of(config, streamed, tokenizer))


def read_all(config: RunConfig, progress: Progress) -> SourceRecords:
    """Read all sources and count or drop duplicates; if data are streamed, only evaluation data.

    Raises:
        DataError: A source is missing, unreadable or empty, holds an invalid record, or only
            duplicates; or the package for near duplicates is missing.
    """
    records = read_records(config, progress)
    if config.data.streaming:
        return records
    kept = deduplicated(records, config.data.dedup, own_eval=config.data.eval is not None)
    kept.findings.counted("records", records.count - kept.count)  # the others are counted later
    return kept


def examine_stream(
    config: RunConfig,
    tokenizer: DataTokenizer,
    progress: Progress,
    count: int,
    limits: ModelLimits = UNLIMITED,
) -> ExampleSets:
    """Tokenize the first `count` rows of each streamed source, and the evaluation data.

    Findings that need consent are not refused.

    Raises:
        DataError: The data have no usable record, most are invalid, or nothing could be learned.
    """
    records = first_streamed(config, count) + read_records(config, progress)
    found = tokenize_data(config, records, tokenizer, progress)
    require_pad_row(tokenizer.pad_token_id, limits)
    require_trainable(config, found.train, found.eval, limits, found.findings)
    return _example_sets(config, found, {})


def _example_sets(config: RunConfig, found: TokenizedData, facts: dict[str, str]) -> ExampleSets:
    sets, streamed = found.parts, config.data.streaming
    if streamed:
        facts = facts | streaming_facts(config, len(found.eval))
    else:
        facts = _facts(found) | score_facts(config.contrastive, found.train) | facts
        facts |= file_hashes((*(one.path for one in config.data.sources), config.data.eval))
    if config.data.packing:
        sets = [_packed(one, config.data.max_length) for one in sets]
        facts |= _packing_facts([row for one in sets for row in one], config.data.max_length)
    mix = None if streamed else _mix(config, sets)
    return ExampleSets(
        train=[example for one in sets for example in one],
        eval=found.eval,
        facts=facts | _mix_facts(config, mix),
        findings=found.findings,
        sources=found.sources,
        sample=found.sample,
        mix=mix,
        streamed=streamed,
    )


def _mix(config: RunConfig, sets: Sequence[Sequence[Example]]) -> Mix | None:
    if isinstance(config.data.train, str):
        return None
    return Mix.of([len(one) for one in sets], first_weights(config))


def _mix_facts(config: RunConfig, mix: Mix | None) -> dict[str, str]:
    if mix is None or config.data.mix:  # the facts of a schedule are those of its phases
        return {}
    total = sum(mix.shares)
    parts = [
        f"{Path(source.path).name} {share / total:.0%} ({share:,} {_of_all(share, count)})"
        for source, share, count in zip(config.data.sources, mix.shares, mix.counts, strict=True)
    ]
    return {"mix per epoch": ", ".join(parts)}


def _of_all(share: int, count: int) -> str:
    """Return the end of a text that begins with `share`, an epoch's number of examples of a source.

    It names `count`, the number of examples that the source has, and if `share` is higher also how
    often each is used.
    """
    if share <= count:
        return f"of its {count:,} examples"
    return f"examples: each of its {count:,} about {share / count:.1f} times"


def _packed(examples: Sequence[Example], max_length: int) -> list[Example]:
    texts = [example for example in examples if isinstance(example, TextExample)]
    return list(pack_examples(texts, max_length))


def _packing_facts(rows: Sequence[Example], max_length: int) -> dict[str, str]:
    filled = sum(row.length for row in rows) / (len(rows) * max_length)
    documents = sum(len(row.documents) for row in rows if isinstance(row, PackedExample))
    return {
        "packed rows": f"{len(rows):,} of {max_length:,} tokens, {filled:.0%} filled, "
        f"{documents / len(rows):.1f} records each"
    }


def _facts(found: TokenizedData) -> dict[str, str]:
    lengths = [example.length for example in found.train]
    mean, longest = sum(lengths) / len(lengths), max(lengths)
    return {
        "train records": f"{len(lengths):,}",
        "eval records": f"{len(found.eval):,}",
        "tokens per record": f"{mean:,.0f} on average, {longest:,} at most",
    }
