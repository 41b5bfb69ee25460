"""Folders, patterns of files, paths, units of text, and what several passes over a source count."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from fttui.engine.config.data_reasons import rows as row_reasons
from fttui.engine.data.findings import Findings
from fttui.engine.data.sources import open_rows, read_rows
from fttui.engine.data.sources.json_values import JsonDecoder
from fttui.engine.errors import DataError


def texts(source: Path | str, findings: Findings | None = None, split: str = "train") -> list[str]:
    rows = read_rows(str(source), split, None, findings or Findings())
    return [row.values["text"] for row in rows]


def put(folder: Path, **files: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(content)
    return folder


def row(text: str) -> str:
    return json.dumps({"text": text}) + "\n"


PROJECT = {
    "requirements.txt": "torch\n",
    "requirements-dev.txt": "pytest\n",
    "README.md": "# about\n",
    "LICENSE.txt": "licence\n",
    "dataset_infos.json": "{}",
    "prepare.py": "print()\n",
    "package.json": "{}",
}


def test_files_about_a_project_are_no_data(tmp_path: Path) -> None:
    folder = put(tmp_path / "d", **PROJECT, **{"a.jsonl": row("a")})
    findings = Findings()
    assert texts(folder, findings) == ["a"]
    assert list(findings) == []


def test_files_of_no_split_are_counted(tmp_path: Path) -> None:
    folder = put(
        tmp_path / "d",
        **{"train.jsonl": row("a"), "test.jsonl": row("b"), "more.jsonl": row("c")},
    )
    findings = Findings()
    assert texts(folder, findings) == ["a"]
    found, other = findings
    assert (found.reason, found.count) == (row_reasons.UNREAD_FILES, 1)
    assert found.place == str(folder / "more.jsonl")
    assert (other.reason, other.place) == (row_reasons.OTHER_SPLITS, str(folder / "test.jsonl"))


def test_texts_and_workbooks_beside_a_table_are_counted(tmp_path: Path) -> None:
    folder = put(tmp_path / "d", **{"a.csv": "text\na\n", "notes.txt": "note\n", "b.xlsx": "x"})
    findings = Findings()
    assert texts(folder, findings) == ["a"]
    assert findings.count(row_reasons.UNREAD_FILES) == 2
    with pytest.raises(DataError, match="unread-files"):
        findings.require_consent(())


def test_a_folder_of_files_of_different_kinds_is_named(tmp_path: Path) -> None:
    folder = put(tmp_path / "d", **{"a.jsonl": row("a"), "b.csv": "q,r\n1,2\n"})
    with pytest.raises(DataError, match=r"a\.jsonl has the columns text, but b\.csv has q, r"):
        texts(folder)


def test_a_folder_without_readable_files_names_those_it_has(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no data files in this folder; found b\.xlsx"):
        texts(put(tmp_path / "d", **{"b.xlsx": "x"}))


def test_a_pattern_reads_the_files_that_match(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = put(tmp_path / "d", **{"b.jsonl": row("b"), "a.jsonl": row("a"), "c.csv": "text\nc\n"})
    put(folder / "in", **{"d.jsonl": row("d")})
    monkeypatch.chdir(tmp_path)
    assert texts("d/*.jsonl") == ["a", "b"]
    assert texts("d/**/*.jsonl") == ["a", "b", "d"]
    assert texts(f"{tmp_path}/d/[ac].*") == ["a", "c"]
    with pytest.raises(DataError, match="no file matches this pattern"):
        texts("d/*.parquet")


def test_a_name_with_brackets_is_a_name(tmp_path: Path) -> None:
    assert texts(put(tmp_path, **{"a[1].jsonl": row("a")}) / "a[1].jsonl") == ["a"]


def test_the_home_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, **{"a.jsonl": row("a")})
    monkeypatch.setenv("HOME", str(tmp_path))
    assert texts("~/a.jsonl") == ["a"]
    assert texts("~/*.jsonl") == ["a"]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_text_file_is_lines_paragraphs_or_one_text(tmp_path: Path, end: str) -> None:
    path = tmp_path / "d.txt"
    path.write_bytes(end.join(["one", "two", "", " ", "three", "", ""]).encode())

    def read(unit: str) -> list[tuple[str, str]]:
        findings = Findings()
        rows = read_rows(str(path), "train", None, findings, unit)  # type: ignore[arg-type]
        assert findings.count(row_reasons.TEXT_LINES) == (unit == "line")
        return [(one.values["text"], one.place.removeprefix(str(path))) for one in rows]

    assert read("line") == [("one", ":1"), ("two", ":2"), ("three", ":5")]
    assert read("paragraph") == [("one\ntwo", ":1"), ("three", ":5")]
    assert read("file") == [("one\ntwo\n\n \nthree", "")]


def _sources(folder: Path) -> list[Path]:
    lines = "".join(row(f"{n}") + ("broken\n" if n == 3 else "") for n in range(400))
    half = lines.index(row("150"))
    put(folder, **{"a.jsonl": lines, "t.csv": "text\n" + "".join(f"{n}\n" for n in range(400))})
    table = pyarrow.table({"text": [str(n) for n in range(400)]})
    pyarrow.parquet.write_table(table, folder / "p.parquet", row_group_size=30)
    with pyarrow.ipc.new_file(folder / "f.arrow", table.schema) as file:
        file.write_table(table, max_chunksize=30)
    put(folder / "many", **{"a.jsonl": lines[:half], "b.jsonl": lines[half:]})
    return [folder / name for name in ("a.jsonl", "t.csv", "p.parquet", "f.arrow", "many")]


def test_a_later_pass_begins_at_any_row(tmp_path: Path) -> None:
    for source in _sources(tmp_path):
        for start in (0, 1, 29, 30, 31, 333, 399, 400, 401):
            rows = [
                one.values["text"] for one in open_rows(str(source), "train", Findings(), start)
            ]
            expected = [str(n) for n in range(start, 400)]
            assert rows == expected


def test_a_place_is_counted_once_in_several_passes(tmp_path: Path) -> None:
    content = row("a") + 'broken\n{"text": "b", "text": "c"}\n' + "\n".join(["7", row("d")])
    put(tmp_path, **{"d.jsonl": content})
    findings, noted = Findings(), set[str]()
    for start in (0, 0, 2, 1):
        list(open_rows(str(tmp_path / "d.jsonl"), "train", findings, start, noted=noted))
    assert findings.count(row_reasons.BROKEN_ROWS) == 2
    assert findings.count(row_reasons.REPEATED_KEYS) == 1
    assert findings.total("files") == 1


def test_several_broken_rows_of_a_line_are_counted(tmp_path: Path) -> None:
    put(tmp_path, **{"d.json": '[{"text": "a"}, 7, 8, {"text": "b", "text": "c"}]'})
    findings, noted = Findings(), set[str]()
    for _ in range(2):
        list(open_rows(str(tmp_path / "d.json"), "train", findings, noted=noted))
    assert findings.count(row_reasons.BROKEN_ROWS) == 2
    assert findings.count(row_reasons.REPEATED_KEYS) == 1


@pytest.mark.parametrize(
    ("content", "table"),
    [
        ("a\tb\tc\n" * 9, True),
        ("q,a\nx,y\nz,w\n", True),
        ("Yes, I do.\nNo, I do not.\nWell, perhaps.\n", False),
        ("one\ntwo\nthree\n", False),
        ("a\tb\nc\nd\te\n", False),
    ],
)
def test_tables_under_another_ending_are_counted(tmp_path: Path, content: str, table: bool) -> None:
    put(tmp_path, **{"d.txt": content})
    findings = Findings()
    assert texts(tmp_path / "d.txt", findings) == content.splitlines()
    assert findings.count(row_reasons.TABLE_LINES) == table
    assert any(one.needs_consent(()) for one in findings) == table


def test_skipped_lines_are_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, **{"d.jsonl": "".join(row(f"{n}") for n in range(1000))})
    decoded: list[str] = []
    decode = JsonDecoder.decode

    def counting(self: JsonDecoder, text: str, position: int) -> tuple[Any, int]:
        decoded.append(text)
        return decode(self, text, position)

    monkeypatch.setattr(JsonDecoder, "decode", counting)
    rows = list(open_rows(str(tmp_path / "d.jsonl"), "train", Findings(), 990))
    assert [one.values["text"] for one in rows] == [str(n) for n in range(990, 1000)]
    assert len(decoded) < 150


def test_a_pipe_is_refused_with_the_step(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.jsonl")
    with pytest.raises(DataError, match=r"a pipe or device, .*; write its content to a file"):
        texts(tmp_path / "a.jsonl")


@pytest.mark.parametrize("start", [150, 165, 175, 300])
def test_a_later_pass_leaves_out_the_same_rows(tmp_path: Path, start: int) -> None:
    huge = '{"text": ' + "9" * 5000 + "}\n"
    texts_first = [json.dumps(f"a{n}") + "\n" for n in range(200)]
    objects_first = [row(f"a{n}") for n in range(200)]
    end = [json.dumps(f"b{n}") + "\n" for n in range(200)]
    for name, content in (
        ("texts", [*texts_first[:160], *['{"x": 1}\n'] * 10, *end]),
        ("objects", [*objects_first[:160], *[huge] * 10, *objects_first]),
        ("blanks", ["\n"] * 90 + texts_first[:50] + ['{"x": 1}\n'] * 20 + end + objects_first),
    ):
        put(tmp_path, **{f"{name}.jsonl": "".join(content)})
        source = str(tmp_path / f"{name}.jsonl")
        whole = read_rows(source, "train", None, Findings())
        assert list(open_rows(source, "train", Findings(), start)) == whole[start:]


def test_a_file_that_changes_between_passes_is_counted(tmp_path: Path) -> None:
    findings, noted = Findings(), set[str]()

    def read() -> int:
        list(open_rows(str(tmp_path), "train", findings, noted=noted))
        return findings.count(row_reasons.CHANGED_FILES)

    put(tmp_path, **{"a.jsonl": row("a"), "b.jsonl": row("b")})
    assert [read(), read()] == [0, 0]
    put(tmp_path, **{"a.jsonl": row("a") + row("c")})
    assert [read(), read()] == [1, 1]
    put(tmp_path, **{"c.jsonl": row("c")})
    assert read() == 2
    assert all(one.needs_consent(()) for one in findings)
