"""Columnar files with cells that Python cannot represent, and streams without their end."""

from __future__ import annotations

import warnings
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.feather
import pyarrow.ipc
import pyarrow.parquet
import pytest

from fttui.engine.config.data_reasons import rows as row_reasons
from fttui.engine.data.findings import Findings
from fttui.engine.data.sources import open_rows, read_rows
from fttui.engine.errors import DataError

TEXTS = pyarrow.table({"text": [f"t{number}" for number in range(300)]})


def read(path: Path) -> tuple[list[dict[str, Any]], Findings]:
    findings = Findings()
    return [row.values for row in read_rows(str(path), "train", None, findings)], findings


def parquet(folder: Path, **columns: Any) -> Path:
    path = folder / "d.parquet"
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path


def stream(path: Path, *, ended: bool = True) -> Path:
    writer = pyarrow.ipc.new_stream(str(path), TEXTS.schema)
    for batch in TEXTS.to_batches(max_chunksize=100):
        writer.write_batch(batch)
    writer.close()
    if not ended:
        path.write_bytes(path.read_bytes()[:-8])
    return path


@pytest.mark.parametrize(
    ("kind", "stored"),
    [
        (pyarrow.timestamp("ms"), 2**61),
        (pyarrow.date32(), 2**31 - 1),
        (pyarrow.timestamp("us", "Mars/Phobos"), 1),
    ],
)
def test_a_time_that_python_lacks_is_the_stored_number(
    tmp_path: Path, kind: pyarrow.DataType, stored: int
) -> None:
    path = parquet(tmp_path, text=["a", "b"], at=pyarrow.array([stored, None], kind))
    rows, findings = read(path)
    assert rows == [{"text": "a", "at": stored}, {"text": "b", "at": None}]
    assert not list(findings)


def test_a_time_inside_a_list_of_structs_is_the_stored_number(tmp_path: Path) -> None:
    kind = pyarrow.list_(pyarrow.struct({"at": pyarrow.timestamp("ms"), "by": pyarrow.string()}))
    cells = pyarrow.array([[{"at": 2**61, "by": "x"}], [{"at": 0, "by": None}]], kind)
    rows, _ = read(parquet(tmp_path, m=cells))
    assert [row["m"] for row in rows] == [
        [{"at": 2**61, "by": "x"}],
        [{"at": datetime(1970, 1, 1)}],
    ]


def test_content_that_differs_from_its_checksum_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "d.parquet"
    pyarrow.parquet.write_table(
        TEXTS, path, compression="none", use_dictionary=False, write_page_checksum=True
    )
    path.write_bytes(path.read_bytes().replace(b"t123", b"t923", 1))
    with pytest.raises(DataError, match=r"not readable as Parquet: .*CRC"):
        read(path)


def test_a_map_with_a_key_twice_is_counted(tmp_path: Path) -> None:
    kind = pyarrow.map_(pyarrow.string(), pyarrow.int32())
    path = parquet(
        tmp_path,
        text=["a", "b"],
        m=pyarrow.array([[("x", 1)], [("y", 1), ("y", 2)]], kind),
    )
    with warnings.catch_warnings(action="error"):
        rows, findings = read(path)
    assert [row["m"] for row in rows] == [{"x": 1}, {"y": 2}]
    (found,) = findings
    assert (found.reason, found.place) == (row_reasons.REPEATED_KEYS, f"{path} row 2")


def test_a_damaged_text_has_a_place(tmp_path: Path) -> None:
    offsets, data = pyarrow.py_buffer(bytes([0, 0, 0, 0, 2, 0, 0, 0, 4, 0, 0, 0])), b"ab\xff\xfe"
    text = pyarrow.Array.from_buffers(pyarrow.string(), 2, [None, offsets, pyarrow.py_buffer(data)])
    with pytest.raises(DataError, match="row 2: column 'text': a text is not UTF-8; write the"):
        read(parquet(tmp_path, text=text))


@pytest.mark.parametrize("name", ["d.arrow", "d.ipc", "d"])
def test_a_stream_is_recognized_by_its_first_bytes(tmp_path: Path, name: str) -> None:
    rows, findings = read(stream(tmp_path / name))
    assert len(rows) == 300
    assert not list(findings)


def test_a_stream_without_end_mark_may_lack_rows(tmp_path: Path) -> None:
    path = stream(tmp_path / "d.arrow", ended=False)
    rows, findings = read(path)
    assert len(rows) == 300
    (found,) = findings
    assert (found.reason, found.place) == (row_reasons.BROKEN_ROWS, f"{path} row 301")
    assert found.needs_consent(())


def test_an_arrow_file_without_its_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "d.arrow"
    with pyarrow.ipc.new_file(str(path), TEXTS.schema) as writer:
        writer.write_table(TEXTS)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match="not readable as Arrow: Not an Arrow file; write"):
        read(path)


@pytest.mark.parametrize("start", [0, 1023, 1024, 1030, 2499])
def test_rows_of_large_batches_are_read_from_any_row(tmp_path: Path, start: int) -> None:
    table = pyarrow.table({"text": [f"t{number}" for number in range(2500)]})
    pyarrow.parquet.write_table(table, tmp_path / "d.parquet")
    pyarrow.feather.write_feather(table, tmp_path / "d.feather")
    for name in ("d.parquet", "d.feather"):
        rows = list(open_rows(str(tmp_path / name), "train", Findings(), start))
        assert [row.values["text"] for row in rows] == [f"t{n}" for n in range(start, 2500)]
        assert rows[0].place == f"{tmp_path / name} row {start + 1}"
