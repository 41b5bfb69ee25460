"""Load the configured data as tokenized training and evaluation examples, or as a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

from ..config.contrastive_candidates import pairs_compared
from ..config.data_reasons import EVERYTHING, NO_TARGET, SAME_COMPLETIONS
from ..config.schema import RunConfig
from ..errors import DataError
from .examples import Example, PackedExample, PairExample, TextExample
from .findings import Findings
from .formats import Format, Record, to_record
from .hashes import file_hashes
from .packing import pack_examples
from .reading import Progress, format_of, read_records
from .sampler import Mix
from .sources import open_rows
from .streaming import InterleavedRows, Rows, ShuffledRows, StreamedBatches
from .tokenize import TokenizeOptions, Tokenizer, tokenize_records

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
    mix: Mix | None = None
    """How several sources make up an epoch; None for a single source."""
    streamed: bool = False
    """Whether the training data are read during training; `train` is empty then."""

    @property
    def per_epoch(self) -> int | None:
        """Number of examples per epoch; None for streamed data."""
        if self.streamed:
            return None
        return sum(self.mix.shares) if self.mix else len(self.train)


def load_examples(
    config: RunConfig, tokenizer: Tokenizer, progress: Progress, *, accepted: bool = False
) -> ExampleSets:
    """Read, split and tokenize the configured data.

    Args:
        config: The run; `task` and the sections `data` and `contrastive` are used.
        tokenizer: The tokenizer of the model.
        progress: Called with (label, done, total).
        accepted: Whether the user has accepted all findings, as for a run that is resumed.

    Raises:
        DataError: The data have no usable record, a record is invalid, or a finding needs consent.
    """
    options, findings = _options(config), Findings()
    parts, held = read_records(config, progress)
    report = partial(progress, "tokenizing evaluation data")
    evaluation = _tokenized(held, tokenizer, options, findings, report, config.data.eval)
    consents = (EVERYTHING,) if accepted else config.data.accept
    if config.data.streaming:
        findings.require_consent(consents)
        facts = _streaming_facts(config, len(evaluation))
        return ExampleSets([], evaluation, facts, findings, streamed=True)
    report = partial(progress, "tokenizing training data")
    sets = [
        _tokenized(part, tokenizer, options, findings, report, source.path)
        for part, source in zip(parts, config.data.sources, strict=True)
    ]
    train = [example for one in sets for example in one]
    _require_candidates(config, train)
    findings.require_consent(consents)
    facts = _facts(train, evaluation)
    facts |= file_hashes((*(one.path for one in config.data.sources), config.data.eval))
    if config.data.packing:
        sets = [_packed(one, options.max_length) for one in sets]
        facts |= _packing_facts([row for one in sets for row in one], options.max_length)
    examples = [example for one in sets for example in one]
    mix = _mix(config, sets)
    facts |= _mix_facts(config, mix)
    return ExampleSets(examples, evaluation, facts, findings, mix)


def _tokenized(
    records: Sequence[Record],
    tokenizer: Tokenizer,
    options: TokenizeOptions,
    findings: Findings,
    progress: Callable[[float, float], None],
    source: str | None,
) -> list[Example]:
    """Tokenize the records of a source; None: records held out, of which all may be dropped.

    Raises:
        DataError: No record of the source can be learned.
    """
    own = Findings()
    examples = tokenize_records(records, tokenizer, options, own, progress)
    if source is not None and not examples:
        dropped = own.count(NO_TARGET) + own.count(SAME_COMPLETIONS)
        raise DataError(
            f"{source}: all {dropped} records were dropped, because "
            f"no token to learn is among the first {options.max_length} tokens; raise "
            "data.max_length, set data.completion_only: false (task sft), or check the records"
        )
    findings.add(own)
    return examples


def stream_batches(
    config: RunConfig, tokenizer: Tokenizer, rank: int, world_size: int
) -> StreamedBatches:
    """Return the micro-batches of a rank from data that are read during training.

    Raises:
        DataError: A source is missing or empty, or its format is unknown.
    """
    data, seed, options = config.data, config.train.seed, _options(config)
    sources: list[Rows] = []
    for source in data.sources:
        split = source.split or data.train_split
        first = next(open_rows(source.path, split), None)
        if first is None:
            raise DataError(
                f"{source.path}: no records; check the source, or choose another data.train"
            )
        form = format_of(config, source.path, [first])
        opened = partial(_open_records, source.path, split, form, data.train_limit)
        sources.append(ShuffledRows(source.path, opened, data.shuffle_buffer, seed))

    def tokenize(records: list[Record]) -> list[Example]:
        found = tokenize_records(records, tokenizer, options, Findings(), lambda done, total: None)
        _require_candidates(config, found)
        return found

    weights = [source.weight or 1.0 for source in data.sources]
    rows = sources[0] if len(sources) == 1 else InterleavedRows(sources, weights, seed)
    return StreamedBatches(rows, tokenize, config.train.batch, rank, world_size)


def _open_records(
    source: str, split: str, form: Format, limit: int | None, start: int
) -> Iterator[Record]:
    rest = None if limit is None else max(0, limit - start)
    for row in islice(open_rows(source, split, start), rest):
        yield to_record(row.values, form, row.place, row.place)


def _streaming_facts(config: RunConfig, held: int) -> dict[str, str]:
    sources = config.data.sources
    total = sum(one.weight or 1.0 for one in sources)
    shares = [
        f" ({(one.weight or 1.0) / total:.0%})" if len(sources) > 1 else "" for one in sources
    ]
    names = [f"{Path(one.path).name}{share}" for one, share in zip(sources, shares, strict=True)]
    return {
        "train records": f"streamed from {', '.join(names)}, {config.data.shuffle_buffer:,} "
        "shuffled at a time",
        "eval records": f"{held:,}",
    }


def _mix(config: RunConfig, sets: Sequence[Sequence[Example]]) -> Mix | None:
    if isinstance(config.data.train, str):
        return None
    weights = [one.weight for one in config.data.train if one.weight is not None]
    return Mix.of([len(one) for one in sets], weights or None)


def _mix_facts(config: RunConfig, mix: Mix | None) -> dict[str, str]:
    if mix is None:
        return {}
    total = sum(mix.shares)
    parts = [
        f"{Path(source.path).name} {share / total:.0%} ({share:,} of its {count:,} examples)"
        for source, share, count in zip(config.data.sources, mix.shares, mix.counts, strict=True)
    ]
    return {"mix per epoch": ", ".join(parts)}


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


def _options(config: RunConfig) -> TokenizeOptions:
    return TokenizeOptions(
        max_length=config.data.max_length,
        completion_only=config.data.completion_only,
        instruction=config.contrastive.instruction,
        hard_negatives=config.contrastive.hard_negatives,
        rated=config.task == "kto",
    )


def _require_candidates(config: RunConfig, examples: list[Example]) -> None:
    """Raise if a pair has no negative although pairs are not compared with each other.

    Raises:
        DataError: A pair has no negative of its own.
    """
    if config.task != "contrastive" or pairs_compared(config) > 1:
        return
    bare = [one.id for one in examples if isinstance(one, PairExample) and not one.negatives]
    if bare:
        raise DataError(
            f"{len(bare)} of {len(examples)} pairs have no negative of their own (first: "
            f"{bare[0]}), and with these settings they have no other candidates, so nothing would "
            "be learned from them; set contrastive.in_batch: true and contrastive."
            "cross_accumulation: on (or train.batch to 2 or more), or add a column 'negative'"
        )


def _facts(train: Sequence[Example], evaluation: Sequence[Example]) -> dict[str, str]:
    lengths = [example.length for example in train]
    mean, longest = sum(lengths) / len(lengths), max(lengths)
    return {
        "train records": f"{len(train):,}",
        "eval records": f"{len(evaluation):,}",
        "tokens per record": f"{mean:,.0f} on average, {longest:,} at most",
    }
