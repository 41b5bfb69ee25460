"""`export --metrics`: write the curves of a run as a table."""

from __future__ import annotations

import argparse
from pathlib import Path

from fttui.engine.errors import ConfigError
from fttui.engine.followers.table import MetricsTable, table_of
from fttui.engine.run.files import write_atomically
from fttui.engine.run.run_dir import RunDirectory

from ...text.format import plural
from ..options import chosen_run, say, warn


def export_metrics(options: argparse.Namespace) -> int:
    """Write the table of the run that the options name; return the exit code.

    Raises:
        ConfigError: the file exists, its folder does not, or the run has no metrics.
        FttuiError: pyarrow is missing for Parquet.
    """
    if options.run and "@" in options.run.rpartition("/")[2]:
        raise ConfigError(f"got {options.run}; --metrics takes a run without @STEP")
    run = chosen_run(options, live=False)
    table, not_read = table_of(run)
    if not table.rows:
        raise ConfigError(f"{run.id} has no metrics: no step and no evaluation is finished")
    data = table.csv() if options.metrics == "csv" else table.parquet()
    place = _written(run, options.out, f"metrics.{options.metrics}", data)
    say(f"{_size(table)} in {place}")
    for line in not_read:
        warn(f"fttui: left out: {line}")
    return 0


def _size(table: MetricsTable) -> str:
    return f"{plural(len(table.rows), 'row')} of {plural(len(table.columns), 'column')}"


def _written(run: RunDirectory, out: Path | None, name: str, data: bytes) -> Path:
    """Write the file, by default into the run folder, where it replaces an earlier one."""
    if out is None:
        with run.open() as folder:
            folder.make_folder("exports")
            folder.write(f"exports/{name}", data)
        return run.path / "exports" / name
    if out.exists():
        raise ConfigError(f"{out} exists; name a new file with --out, or remove it")
    if not out.absolute().parent.is_dir():
        raise ConfigError(f"the folder {out.absolute().parent} does not exist; make it first")
    write_atomically(out, data)
    return out
