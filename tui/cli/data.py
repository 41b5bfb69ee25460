"""`data`: summarise a file or another source of training data."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from fttui.engine.errors import DataError
from fttui.engine.protocol.data.messages import DataLine, DataSummary, Lengths

from ..text.format import clip_to, plural
from .options import Commands, say, say_json, say_line, warn
from .preflight.training_packages import require_training_packages

_LONGEST_TEXT = 300
"""Most characters that are printed of each text of the first record."""
_LONGEST_NAME = 40
_MOST_COLUMNS = 20


def add_commands(commands: Commands) -> None:
    """Register the subcommand `data` of `fttui`."""
    parser = commands.add_parser(
        "data", help="summarise a data file: format, columns, lengths, duplicates"
    )
    parser.add_argument(
        "source", metavar="FILE", help="a file, a folder, or the id of a dataset on the Hub"
    )
    parser.add_argument(
        "--config",
        metavar="CONFIG",
        type=Path,
        help="read FILE with the settings of this configuration",
    )
    parser.add_argument(
        "--model", metavar="M", default="", help="count tokens with the tokenizer of model M"
    )
    parser.add_argument(
        "--split", metavar="S", default="train", help="split of the dataset (default: train)"
    )
    parser.add_argument(
        "--format", choices=("text", "json"), default="text", help="output (default: text)"
    )
    parser.set_defaults(handler=_data)


def _data(options: argparse.Namespace) -> int:
    from .data_check.process import data_messages, print_lines
    from .data_check.text import print_record

    require_training_packages("fttui data")
    given = ""
    if options.config is not None:
        from fttui.engine.config.load import load_config

        given = load_config(options.config, []).resolved
    arguments = [options.source, f"--split={options.split}", f"--model={options.model}"]
    messages = data_messages("summary", arguments, given)
    if options.format == "json":
        return _print_json(messages)
    for message in print_lines(messages, say_line):
        if isinstance(message, DataSummary):
            for line in summary_lines(message):
                say(line)
            for record in message.sample:
                say("")
                print_record(record)
            if message.problem:
                raise DataError(message.problem)
            say(f"\nto train on it, put this into a configuration:\n\n{message.section.rstrip()}")
    return 0


def _print_json(messages: Iterator[object]) -> int:
    """Print the summary as JSON, and other lines to standard error; return the exit code.

    Raises:
        DataError: the data cannot be used; the summary is printed all the same.
    """
    problem = ""
    for message in messages:
        if isinstance(message, DataLine):
            warn(message.text)
        if isinstance(message, DataSummary):
            plain = msgspec.to_builtins(message)
            del plain["k"]
            say_json(plain, indent=2)
            problem = message.problem
    if problem:
        raise DataError(problem)
    return 0


def summary_lines(summary: DataSummary) -> Iterator[str]:
    """Yield the lines that `fttui data` prints about a source before its sample records."""
    yield f"{summary.source}: {plural(summary.records, 'record')}"
    if not summary.format:
        yield f"columns: {_names(summary.unused)}"
        yield from _findings(summary)
        return
    yield f"format: {summary.format.replace('_', ' + ')} (task {summary.task})"
    if summary.decision:
        yield f"format decided by: {summary.decision}"
    yield f"columns used: {_names(summary.used)}"
    if summary.unused:
        yield f"columns not used: {_names(summary.unused)}"
    if summary.characters:
        yield f"characters per record: {_lengths(summary.characters)}"
    if summary.tokens:
        yield f"tokens per record: {_lengths(summary.tokens)}"
    yield f"duplicates: {summary.duplicates:,}; records with an empty text: {summary.empty:,}"
    yield from _findings(summary)
    if not summary.sample:
        yield "first record:"
        yield from (f"  [{name}] {_shortened(text)}" for name, text in summary.first)


def _findings(summary: DataSummary) -> Iterator[str]:
    return (f"finding: {found.line}; {found.remedy}" for found in summary.findings)


def _names(columns: Sequence[str]) -> str:
    """Return the names of columns as a short text; `--format json` prints all of them in full."""
    shown = ", ".join(clip_to(name, _LONGEST_NAME) for name in columns[:_MOST_COLUMNS])
    more = len(columns) - _MOST_COLUMNS
    return shown + (f" and {more:,} more" if more > 0 else "")


def _lengths(found: Lengths) -> str:
    return f"{found.least:,} to {found.most:,}, median {found.median:,}, 95 % up to {found.p95:,}"


def _shortened(text: str) -> str:
    left_out = len(text) - _LONGEST_TEXT
    return text if left_out <= 0 else f"{text[:_LONGEST_TEXT]} … {left_out:,} more characters"
