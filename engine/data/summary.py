"""Summarise a file or another source: `python -m fttui.engine.data.summary SOURCE`.

Standard input may have a resolved configuration, whose task, settings and model are then used.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from msgspec.structs import replace

from ..config.load import parse_resolved
from ..config.schema import DataConfig, ModelConfig, RunConfig, TrainConfig
from ..config.tasks import FORMATS_OF
from ..errors import DataError, FttuiError, ModelError
from ..protocol.data.messages import DataLine, DataRefused, DataSummary, Lengths
from .channel import Channel, without_torch
from .findings import Findings
from .reading import Progress, note_nan_labels, records_of
from .records.formats import PairRecord, Record
from .records.reader import RecordReader
from .sources import SourceRecord, read_rows
from .tokenized import DataTokenizer, learner, tokenize_options
from .tokens.sample import sample_records
from .tokens.tokenize import tokenize_records

_NO_TEXT = ("id", "place", "label", "desirable", "score")
"""Fields of records that are not texts."""


def summarize(
    config: RunConfig,
    tasks: Sequence[str],
    source: str,
    split: str,
    tokenizer: DataTokenizer | None,
    progress: Progress,
) -> DataSummary:
    """Return what a source contains; its `problem` says why it cannot be trained on, or is empty.

    Args:
        config: Settings with which the source is read.
        tasks: The tasks to read it for. The one whose format fits most rows is used; among equals,
            the one that reads most columns.
        source: A file, a pattern of files, a folder or a hub dataset.
        split: Split of a folder, a hub dataset or a JSON object of splits.
        tokenizer: The tokenizer with which tokens are counted; None counts no tokens.
        progress: Called with (label, done, total).

    Raises:
        DataError: The source cannot be read.
    """
    progress(f"reading {source}", 0, 1)
    findings = Findings()
    rows = read_rows(source, split, None, findings, config.data.text)
    names = list(dict.fromkeys(name for row in rows for name in row.values))
    summary = DataSummary(source=source, records=len(rows), unused=names)
    try:
        read = _understood(config, tasks, source, rows)
    except DataError as error:
        findings.counted("records", len(rows))
        return replace(summary, findings=findings.to_structs(), problem=str(error))
    config, records, unused = read.config, read.records, read.reader.use.unused
    findings.add(read.findings)
    read.reader.use.note(findings)
    note_nan_labels(rows, config.data.columns, findings)
    texts = [list(_texts(record)) for record in records]
    summary = replace(
        summary,
        format=read.reader.decision.form,
        decision=read.reader.decision.line,
        task=config.task,
        used=[name for name in names if name not in unused],
        unused=unused,
        characters=_lengths([sum(len(text) for _, text in one) for one in texts]),
        duplicates=len(records) - len({json.dumps(one) for one in texts}),
        empty=sum(any(not text.strip() for _, text in one) for one in texts),
        first=texts[0],
        section=_section(config, source, split, records),
    )
    if tokenizer is not None:
        return _counted(config, records, tokenizer, progress, findings, summary)
    findings.counted("records", len(records))
    return replace(summary, findings=findings.to_structs())


@dataclass(frozen=True)
class _Read:
    """The rows of a source as they are read for one task."""

    config: RunConfig
    records: list[Record]
    reader: RecordReader
    findings: Findings


def _understood(
    config: RunConfig, tasks: Sequence[str], source: str, rows: list[SourceRecord]
) -> _Read:
    """Return the rows as read for the task whose format fits most of them.

    Among equally good tasks, it is the one that leaves the fewest columns unused.

    Raises:
        DataError: No task can read the rows; the text is that of the first task.
    """
    found: list[_Read] = []
    errors: list[DataError] = []
    for task in tasks:
        chosen, findings = replace(config, task=task), Findings()
        reader = RecordReader(chosen, source, findings)
        try:
            records, _ = records_of(reader, source, rows)
        except DataError as error:
            errors.append(error)
        else:
            found.append(_Read(chosen, records, reader, findings))
    if not found:
        raise errors[0]
    return min(found, key=lambda one: (-one.reader.decision.fitting, len(one.reader.use.unused)))


def _texts(record: Record) -> Iterator[tuple[str, str]]:
    """Yield the texts of a record with their names, in the order of its fields."""
    for name, value in asdict(record).items():
        if name not in _NO_TEXT:
            yield from _texts_in(name, value)


def _texts_in(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, Mapping) and "role" in value:
        yield str(value["role"]), _content(value)
    elif isinstance(value, Mapping):
        for key, part in value.items():
            if key not in _NO_TEXT:
                yield from _texts_in(f"{name} {key}", part)
    elif isinstance(value, Sequence):
        for part in value:
            yield from _texts_in(name, part)


def _content(message: Mapping[str, Any]) -> str:
    """Return the content of a message, and everything else in it but the role as JSON."""
    rest = {key: part for key, part in message.items() if key not in ("role", "content")}
    content = message.get("content") or ""
    shown = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    return shown + (json.dumps(rest, ensure_ascii=False, default=str) if rest else "")


def _lengths(found: list[int]) -> Lengths | None:
    if not found:
        return None
    ordered = sorted(found)

    def at(share: float) -> int:
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    return Lengths(least=ordered[0], median=at(0.5), p95=at(0.95), most=ordered[-1])


def _counted(
    config: RunConfig,
    records: list[Record],
    tokenizer: DataTokenizer,
    progress: Progress,
    findings: Findings,
    summary: DataSummary,
) -> DataSummary:
    """Return the summary with what only the tokenizer finds: token lengths, findings, first record.

    If the records cannot be tokenized, it has a `problem` and the findings so far.
    """
    options = tokenize_options(config)

    def report(done: float, total: float) -> None:
        progress("tokenizing", done, total)

    try:
        examples = tokenize_records(records, tokenizer, options, findings, report)
        sample = sample_records(records[:1], learner(tokenizer, options), tokenizer)
    except DataError as error:
        return replace(summary, findings=findings.to_structs(), problem=str(error))
    return replace(
        summary,
        tokens=_lengths([example.length for example in examples]),
        findings=findings.to_structs(),
        sample=sample,
    )


def _section(config: RunConfig, source: str, split: str, records: Sequence[Record]) -> str:
    """Return the part of a configuration, as YAML, that trains on a split of the source."""
    plain = f"task: {config.task}\ndata:\n  train: {json.dumps(source, ensure_ascii=False)}\n"
    if split != "train":
        plain += f"  train_split: {json.dumps(split, ensure_ascii=False)}\n"
    if config.task != "contrastive":
        return plain
    scored = any(isinstance(one, PairRecord) and one.score is not None for one in records)
    kind = "cosent" if scored else "infonce"
    return f"{plain}contrastive:\n  kind: {kind}\n"


def _config(
    given: str,
    source: str,
    model: str,
    columns: Mapping[str, str] | None = None,
    roles: Mapping[str, str] | None = None,
) -> tuple[RunConfig, tuple[str, ...]]:
    """Return the configuration to read the source with, and the tasks to try.

    Args:
        given: A resolved configuration; without one, all tasks are tried with the defaults.
        source: The source.
        model: `model.id`, if no configuration is given.
        columns: `data.columns`, if no configuration is given.
        roles: `data.roles`, if no configuration is given.

    Raises:
        ConfigError: The given configuration is not valid.
    """
    if given:
        config = parse_resolved(given, "the configuration")
        data = replace(config.data, train=source, eval=None, streaming=False)
        return replace(config, data=data), (config.task,)
    plain = RunConfig(
        model=ModelConfig(id=model),
        data=DataConfig(train=source, columns=dict(columns or {}), roles=dict(roles or {})),
        train=TrainConfig(steps=1),
    )
    return plain, tuple(FORMATS_OF)


def _tokenizer(config: RunConfig, channel: Channel) -> DataTokenizer | None:
    """Load the tokenizer of the model; if it cannot be loaded, send a line and return None.

    Raises:
        ConfigError: The chat template cannot be found.
    """
    from ..model.tokenizer import load_tokenizer  # deferred: it imports transformers

    try:
        found: DataTokenizer = load_tokenizer(config.model, config.data, channel.progress)
    except ModelError as error:
        channel.send(DataLine(text=f"tokens: not counted: {error}"))
        return None
    return found


def main(arguments: list[str] | None = None) -> int:
    """Summarise a source, write the summary or the refusal as a message, and return the exit code.

    Standard input is read to its end: it may have a resolved configuration. None as `arguments`
    reads those of the process.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("source")
    parser.add_argument("--split", default="train")
    parser.add_argument("--model", default="")
    parser.add_argument("--columns", type=json.loads, default={})
    parser.add_argument("--roles", type=json.loads, default={})
    options = parser.parse_args(arguments)
    given = sys.stdin.read()
    channel = Channel(sys.stdout)
    try:
        config, tasks = _config(
            given, options.source, options.model, options.columns, options.roles
        )
        without_torch(config.model)
        tokenizer = _tokenizer(config, channel) if given or options.model else None
        channel.send(
            summarize(config, tasks, options.source, options.split, tokenizer, channel.progress)
        )
    except FttuiError as error:
        channel.send(DataRefused(text=str(error), exit_code=error.exit_code))
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
