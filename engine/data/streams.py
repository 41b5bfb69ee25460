"""Open the configured training data as streams: their micro-batches, first records and facts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path

from ..config.model_limits import UNLIMITED, ModelLimits
from ..config.schema import RunConfig, TextUnit
from ..errors import DataError
from .batches.streaming import InterleavedRows, Rows, ShuffledRows, StreamedBatches
from .findings import Findings, OncePerPlace
from .mix_plan import first_weights
from .reading import SourceRecords, SourceSummary, of_source
from .records.formats import MARGIN, Record
from .records.mapping import LeftOut, require_few_invalid
from .records.reader import SAMPLE_ROWS, RecordReader, StreamRow
from .screening.trainable import note_margins, require_usable
from .sources import SourceRecord, is_local, open_rows
from .tokenized import tokenize_options
from .tokens.examples import Example
from .tokens.tokenize import Tokenizer, tokenize_records


@dataclass(frozen=True)
class _Stream:
    """One streamed source and the reader of its rows."""

    path: str
    split: str
    text: TextUnit
    """Unit of plain text that makes a row."""
    reader: RecordReader
    findings: Findings
    """Receives rows that cannot be read, and what is guessed."""
    graded: bool | None = None
    """Whether its first pair of answers to be scored has a margin; None for other records."""
    noted: set[str] = field(default_factory=set)
    """What was counted in earlier passes, which is not counted again."""

    def open(self, limit: int | None, start: int = 0) -> Iterator[StreamRow]:
        """Yield the records of the first `limit` rows, beginning with row `start`.

        For a row without a record, the reason is yielded. None as the limit yields all.

        Raises:
            DataError: The source cannot be read, or a row makes several records.
        """
        rest = None if limit is None else max(0, limit - start)
        yield from islice(self._records(start, self.findings), rest)

    def _records(self, start: int, findings: Findings) -> Iterator[StreamRow]:
        rows = open_rows(self.path, self.split, findings, start, text=self.text, noted=self.noted)
        for row in rows:
            found = self.reader.prepare(row)
            if isinstance(found, LeftOut):
                yield found
                continue
            if self.reader.makes_several_records(found):
                raise DataError(
                    f"{row.place}: several positives make several records, which cannot be "
                    "streamed; set data.streaming: false or data.positives: first, or give every "
                    "positive a row of its own"
                )
            yield self.reader.read(found, row.place)

    def first(self, count: int, findings: Findings) -> list[Record]:
        """Return the records of the first `count` rows; note rows and columns that are not read.

        Raises:
            DataError: The source cannot be read, most rows are invalid, or a row makes several
                records.
        """
        found = list(islice(self._records(0, findings), count))
        records = [one for one in found if not isinstance(one, LeftOut)]
        left = [one for one in found if isinstance(one, LeftOut)]
        require_few_invalid(left, len(found))
        for one in left:
            one.note(findings)
        self.reader.use.note(findings)
        return records


def _streams(config: RunConfig, findings: Findings) -> Iterator[_Stream]:
    """Yield the streamed sources.

    Raises:
        DataError: A source is missing or empty, or its format is unknown.
    """
    for source in config.data.sources:
        split = source.split or config.data.train_split
        rows = open_rows(source.path, split, Findings(), text=config.data.text)
        sample = list(islice(rows, SAMPLE_ROWS))
        if not sample:
            raise DataError(
                f"{source.path}: no records; check the source, or choose another data.train"
            )
        reader = RecordReader(of_source(config, source), source.path, OncePerPlace(findings))
        reader.decide(sample)
        graded = _have_margin(reader, sample) if config.task == "reward" else None
        yield _Stream(source.path, split, config.data.text, reader, findings, graded)


def _have_margin(reader: RecordReader, rows: Sequence[SourceRecord]) -> bool | None:
    """Return whether the first of the rows that is a pair of answers to be scored has a margin.

    None if none is one.

    Raises:
        UnclearLabel: A label can mean several things.
    """
    prepared = (reader.prepare(row) for row in rows)
    pairs = (row.values for row in prepared if not isinstance(row, LeftOut))
    return next((MARGIN in values for values in pairs if "rejected" in values), None)


def first_streamed(config: RunConfig, count: int) -> SourceRecords:
    """Return the records of the first `count` rows of every streamed source.

    They are fewer rows if `data.train_limit` is lower.

    Raises:
        DataError: A source cannot be read, or most of these records are invalid.
    """
    train, summaries, findings = [], [], Findings()
    for stream in _streams(config, findings):
        records = stream.first(min(count, config.data.train_limit or count), findings)
        train.append(records)
        summaries.append(
            SourceSummary(stream.path, "train", stream.reader.decision.form, len(records))
        )
    return SourceRecords(train, [], summaries, findings)


def stream_batches(
    config: RunConfig,
    tokenizer: Tokenizer,
    rank: int,
    world_size: int,
    limits: ModelLimits = UNLIMITED,
) -> StreamedBatches:
    """Return the micro-batches of a rank from data that are read during training.

    Its `findings` grow while rows are read; an invalid row is left out and counted there.

    Raises:
        DataError: A source is missing or empty, or its format is unknown.
    """
    data, seed, options = config.data, config.train.seed, tokenize_options(config)
    found_in_rows = Findings()
    streams = list(_streams(config, found_in_rows))
    sources: list[Rows] = [
        ShuffledRows(one.path, partial(one.open, data.train_limit), data.shuffle_buffer, seed)
        for one in streams
    ]
    graded = streams[0].graded

    def tokenize(rows: list[StreamRow], findings: Findings) -> list[Example]:
        records = [one for one in rows if not isinstance(one, LeftOut)]
        for one in rows:
            if isinstance(one, LeftOut):
                one.note(findings)
        found = tokenize_records(records, tokenizer, options, findings, lambda done, total: None)
        require_usable(config, found, limits)
        if graded is not None:
            note_margins(found, findings, graded=graded)
        return found

    weights = first_weights(config) or [1.0] * len(sources)
    rows = sources[0] if len(sources) == 1 else InterleavedRows(sources, weights, seed)
    return StreamedBatches(
        rows,
        tokenize,
        config.train.micro_batch_size,
        rank,
        world_size,
        findings=found_in_rows,
        why_not_read_again=_why_not_read_again(config),
    )


def _why_not_read_again(config: RunConfig) -> str:
    """Return why streamed sources cannot be read again from an earlier row on; empty if they can.

    A dataset on the Hub may have changed meanwhile, and reading an earlier row starts its stream
    again.
    """
    remote = [one.path for one in config.data.sources if not is_local(one.path)]
    if not remote:
        return ""
    return (
        f"{remote[0]} is streamed from the Hub, which cannot be read again for the search of "
        "culprits; download it and give its files as data.train, or set data.streaming: false"
    )


def streaming_facts(config: RunConfig, held: int) -> dict[str, str]:
    """Return the facts of streamed data; `held` is the number of evaluation records."""
    sources = config.data.sources
    weights = first_weights(config) or [1.0] * len(sources)
    shares = [f" ({one / sum(weights):.0%})" if len(sources) > 1 else "" for one in weights]
    names = [f"{Path(one.path).name}{share}" for one, share in zip(sources, shares, strict=True)]
    return {
        "train records": f"streamed from {', '.join(names)}, {config.data.shuffle_buffer:,} "
        "records shuffled at a time",
        "eval records": f"{held:,}",
    }
