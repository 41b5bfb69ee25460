"""Speed of reading data files against plain readers: `python -m tests.bench.data_reading`.

Every form holds the same records. The ratio is the time of fttui divided by that of a plain reader
of the same form, in the same run. The time of a JSON list has to grow with its length: four times
the rows may take at most six times as long.
"""

from __future__ import annotations

import csv
import gzip
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from fttui.engine.data.findings import Findings
from fttui.engine.data.sources import open_rows, read_rows

ROWS = 20_000
REPEATS = 3
"""Times that each reader is measured; the shortest time counts."""
LARGEST_GROWTH = 6.0
"""Largest ratio of times for four times the rows; the surplus over 4 is for noise."""

Records = list[dict[str, Any]]


def records(count: int) -> Records:
    """Conversations of about 500 characters."""
    return [
        {
            "id": str(number),
            "messages": [
                {"role": "user", "content": f"question {number}: " + "what is “this”? " * 8},
                {"role": "assistant", "content": "an answer, and\nmore of it. " * 12},
            ],
        }
        for number in range(count)
    ]


def flat(rows: Records) -> list[dict[str, str]]:
    """The same texts in columns."""
    return [
        {"prompt": row["messages"][0]["content"], "completion": row["messages"][1]["content"]}
        for row in rows
    ]


def _json_lines(path: Path, rows: Records) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def _gzipped(path: Path, rows: Records) -> None:
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_bytes(gzip.compress(lines.encode(), compresslevel=1))


def _list(path: Path, rows: Records) -> None:
    path.write_text(json.dumps(rows, ensure_ascii=False, indent=1))


def _object(path: Path, rows: Records) -> None:
    path.write_text(json.dumps({"version": 1, "data": rows}, ensure_ascii=False))


def _csv(path: Path, rows: Records) -> None:
    with path.open("w", newline="") as out:
        table = csv.DictWriter(out, ["prompt", "completion"])
        table.writeheader()
        table.writerows(flat(rows))


def _text(path: Path, rows: Records) -> None:
    path.write_text("".join(row["prompt"] + "\n" for row in flat(rows)))


def _parquet(path: Path, rows: Records) -> None:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def _plain_lines(path: Path) -> list[Any]:
    with path.open() as lines:
        return [json.loads(line) for line in lines]


def _plain_gzipped(path: Path) -> list[Any]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def _plain_json(path: Path) -> list[Any]:
    found = json.loads(path.read_text())
    return list(found["data"] if isinstance(found, dict) else found)


def _plain_csv(path: Path) -> list[Any]:
    with path.open(newline="") as lines:
        return list(csv.DictReader(lines))


def _plain_text(path: Path) -> list[Any]:
    with path.open() as lines:
        return [{"text": line} for line in lines]


def _plain_parquet(path: Path) -> list[Any]:
    return list(pyarrow.parquet.read_table(path).to_pylist())


@dataclass(frozen=True)
class Form:
    """A form of data files: how it is written, and its plain reader."""

    name: str
    write: Callable[[Path, Records], None]
    plain: Callable[[Path], list[Any]]


FORMS = (
    Form("lines.jsonl", _json_lines, _plain_lines),
    Form("lines.jsonl.gz", _gzipped, _plain_gzipped),
    Form("list.json", _list, _plain_json),
    Form("object.json", _object, _plain_json),
    Form("table.csv", _csv, _plain_csv),
    Form("lines.txt", _text, _plain_text),
    Form("table.parquet", _parquet, _plain_parquet),
)


def read(path: Path) -> list[Any]:
    """Read a file as a run does."""
    return read_rows(str(path), "train", None, Findings())


def seconds(work: Callable[[], Iterable[Any]]) -> float:
    """Return the shortest time of several calls."""
    found = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        work()
        found.append(time.perf_counter() - started)
    return min(found)


def compare(form: Form, folder: Path, rows: Records) -> str:
    """Return the speed of reading a form, as a line of the table."""
    path = folder / form.name
    form.write(path, rows)
    assert len(read(path)) == len(form.plain(path)) == len(rows)
    ours, plain = seconds(lambda: read(path)), seconds(lambda: form.plain(path))
    speed = path.stat().st_size / 2**20 / ours
    return f"{form.name:<16}{len(rows) / ours:>12,.0f}{speed:>10.1f}{ours / plain:>8.2f}"


def growth(folder: Path) -> float:
    """Return how many times as long four times the rows of a list take."""
    times = []
    for count in (ROWS // 4, ROWS):
        path = folder / f"{count}.json"
        _list(path, records(count))
        times.append(seconds(lambda path=path: read(path)))  # type: ignore[misc]
    return times[1] / times[0]


def skipping(folder: Path, rows: Records) -> float:
    """Return the share of the reading time that skipping all rows of a stream takes."""
    path = folder / "skipped.jsonl"
    _json_lines(path, rows)
    start = len(rows) - 1
    skipped = seconds(lambda: list(open_rows(str(path), "train", Findings(), start)))
    return skipped / seconds(lambda: read(path))


def main() -> int:
    """Print the table; return 1 if the time of a list grows faster than its length."""
    with tempfile.TemporaryDirectory() as name:
        folder, rows = Path(name), records(ROWS)
        print(f"{ROWS:,} records; ratio: time of fttui / time of a plain reader")
        print(f"{'form':<16}{'rows/s':>12}{'MiB/s':>10}{'ratio':>8}")
        for form in FORMS:
            print(compare(form, folder, rows), flush=True)
        print(f"rows that a stream skips: {skipping(folder, rows):.2f} of the time to read them")
        grown = growth(folder)
        print(f"a JSON list of 4 times the rows: {grown:.1f} times as long")
    if grown > LARGEST_GROWTH:
        print(
            f"error: got {grown:.1f} times, expected at most {LARGEST_GROWTH:g}; reading is slower"
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
