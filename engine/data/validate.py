"""Validate data files before a model is loaded: `python -m fttui.engine.data.validate`.

Reads a resolved configuration from standard input and prints for each file how many records of
which format it holds. It ends at the first invalid record and names file, line and field.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

from ..config.load import parse_resolved
from ..config.schema import STDLIB_PAIRS, RunConfig
from ..errors import DataError
from .formats import to_record
from .reading import format_of
from .sources import open_rows

MOST_RECORDS = 100_000
"""Records read of one file at most, which takes a few seconds."""


def validate_files(config: RunConfig) -> Iterator[str]:
    """Yield one line for each data file on this machine.

    Raises:
        DataError: A file is unreadable, the task cannot use its format, or a record is invalid.
    """
    named = [(source.path, config.data.train_limit) for source in config.data.sources]
    named += [(config.data.eval, None)] if config.data.eval else []
    for source, limit in named:
        if source != STDLIB_PAIRS and Path(source).is_file():
            yield _validated(config, source, limit)


def _validated(config: RunConfig, source: str, limit: int | None) -> str:
    """Read the records of a file and return a line about them."""
    most = min(limit or MOST_RECORDS, MOST_RECORDS)
    rows = open_rows(source, "train")
    first = next(rows, None)
    if first is None:
        raise DataError(f"{source}: no records; check the file, or name another file")
    form = format_of(config, source, [first])
    count = 0
    for count, row in enumerate(islice(chain([first], rows), most), start=1):
        to_record(row.values, form, str(count), row.place)
    kind = form.replace("_", " + ")
    if next(rows, None) is None:
        return f"{source}: {count:,} records ({kind}), all valid"
    return f"{source}: the first {count:,} records ({kind}) are valid"


def main() -> int:
    """Validate the files of the configuration on standard input and return the exit code."""
    try:
        for line in validate_files(parse_resolved(sys.stdin.read(), "the configuration")):
            sys.stdout.write(f"{line}\n")
    except DataError as error:
        sys.stderr.write(f"fttui: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
