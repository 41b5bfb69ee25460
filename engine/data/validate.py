"""Validate data files before a model is loaded: `python -m fttui.engine.data.validate`.

Reads a resolved configuration from standard input and says of each file what its records are. The
first record that cannot be used ends it, with file, line and field.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

from ..config.load import parse_resolved
from ..config.schema import STDLIB_PAIRS, RunConfig
from ..errors import DataError
from .dataset import format_of
from .formats import to_record
from .sources import open_rows

MOST_RECORDS = 100_000
"""Read of one file; some seconds' worth."""


def look(config: RunConfig) -> Iterator[str]:
    """One line per file of records on this machine.

    Raises:
        DataError: a file is broken, its format is not one of the task, or a record lacks something.
    """
    named = [(source.path, config.data.train_limit) for source in config.data.sources]
    named += [(config.data.eval, None)] if config.data.eval else []
    for source, limit in named:
        if source != STDLIB_PAIRS and Path(source).is_file():
            yield _told(config, source, limit)


def _told(config: RunConfig, source: str, limit: int | None) -> str:
    most = min(limit or MOST_RECORDS, MOST_RECORDS)
    rows = open_rows(source, "train")
    first = next(rows, None)
    if first is None:
        raise DataError(f"{source}: no records; check the file, or name another one")
    form = format_of(config, source, [first])
    count = 0
    for count, row in enumerate(islice(chain([first], rows), most), start=1):
        to_record(row.values, form, str(count), row.place)
    kind = form.replace("_", " + ")
    if next(rows, None) is None:
        return f"{source}: {count:,} records ({kind}), all read and good"
    return f"{source}: the first {count:,} records ({kind}) are read and good"


def main() -> int:
    """Print the lines; returns the exit code."""
    try:
        for line in look(parse_resolved(sys.stdin.read(), "the configuration")):
            sys.stdout.write(f"{line}\n")
    except DataError as error:
        sys.stderr.write(f"fttui: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
