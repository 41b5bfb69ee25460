"""`python -m tests.faults [--long] [--only F18,F08]`: inject the faults and print the table.

Exits 1 when a fault broke an invariant or missed its target.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path

from tests.conftest import FIXED

from . import FAULTS, Row, Stage, play_all
from .book import Box


def main() -> int:
    """Run the chosen faults."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--long", action="store_true", help="the long counts")
    parser.add_argument("--only", default="", help="ids, separated by commas")
    parser.add_argument("--seed", type=int, default=0, help="of every random choice")
    parser.add_argument("--keep", action="store_true", help="keep the folder of runs")
    options = parser.parse_args()
    chosen = [id_.strip().upper() for id_ in options.only.split(",") if id_.strip()]
    if unknown := set(chosen) - set(FAULTS):
        parser.error(f"no fault {', '.join(sorted(unknown))}; there are: {', '.join(FAULTS)}")
    os.environ.update(FIXED)
    sockets, folder = (Path(tempfile.mkdtemp(prefix=p, dir="/tmp")) for p in ("ft-", "faults-"))
    os.environ["XDG_RUNTIME_DIR"] = str(sockets)
    os.environ["XDG_STATE_HOME"] = str(folder / "state")
    try:
        return _play(chosen or list(FAULTS), options, folder)
    finally:
        shutil.rmtree(sockets, ignore_errors=True)
        if options.keep:
            print(f"kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


def _play(ids: list[str], options: argparse.Namespace, folder: Path) -> int:
    box = Box(folder, Stage(folder), options.long, random.Random(options.seed))
    rows = []
    for row in play_all(ids, box, folder):
        print(f"{row.fault.id}  {row.mark}  {row.seconds:.0f} s  {row.figures.ours}", flush=True)
        rows.append(row)
    print(f"\n{table(rows)}\n\n{_surroundings()}")
    return 0 if all(row.figures.ok or row.figures.skipped for row in rows) else 1


def table(rows: list[Row]) -> str:
    """The rows as a Markdown table."""
    lines = ["| # | injection | ours | target | baseline | ok |", "|---|---|---|---|---|---|"]
    for row in rows:
        fault = row.fault
        cells = (fault.id, fault.injection, row.figures.ours, fault.target, fault.baseline)
        lines.append(f"| {' | '.join(cells)} | {row.mark} |")
    return "\n".join(lines)


def _surroundings() -> str:
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return f"{os.cpu_count()} CPUs, load {load} (1, 5, 15 min), Python {sys.version.split()[0]}"


if __name__ == "__main__":
    sys.exit(main())
