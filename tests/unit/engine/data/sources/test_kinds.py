"""Files as people have them: every form of JSON, tables, text, compression and encodings."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.feather
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fttui.engine.config.data_reasons import rows as row_reasons
from fttui.engine.data.findings import Findings
from fttui.engine.data.sources import open_rows, read_rows
from fttui.engine.errors import DataError

ROWS = [{"q": "a, b", "n": 1}, {"q": 'say "ç"\nor 中', "n": 2}, {"q": "x", "n": 3}]
CHAT = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]

FORMS: dict[str, Callable[[list[dict[str, Any]]], str]] = {
    "lines": lambda rows: "".join(json.dumps(row) + "\n" for row in rows),
    "lines, not escaped": lambda rows: "".join(
        json.dumps(row, ensure_ascii=False) + "\r\n" for row in rows
    ),
    "list": json.dumps,
    "list over lines": lambda rows: json.dumps(rows, indent=2),
    "objects over lines": lambda rows: "\n".join(json.dumps(row, indent=2) for row in rows),
    "objects with commas": lambda rows: ",\n".join(json.dumps(row, indent=2) for row in rows),
    "list in one line of lines": lambda rows: json.dumps(rows) + "\n\n",
    "object with a list": lambda rows: json.dumps({"version": "1", "data": rows}),
    "object with another list": lambda rows: json.dumps({"name": "n", "tasks": rows}),
    "object of columns": lambda rows: json.dumps({k: [r[k] for r in rows] for k in rows[0]}),
}


def write(folder: Path, name: str, content: str | bytes) -> str:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def values(source: str, findings: Findings | None = None, split: str = "train") -> list[Any]:
    rows = read_rows(source, split, None, findings or Findings())
    return [row.values for row in rows]


@pytest.mark.parametrize("suffix", [".json", ".jsonl", ".txt", ""])
@pytest.mark.parametrize("form", FORMS)
def test_json_is_read_in_every_form_whatever_its_ending(
    tmp_path: Path, form: str, suffix: str
) -> None:
    source = write(tmp_path, f"d{suffix}", FORMS[form](ROWS))
    findings = Findings()
    assert values(source, findings) == ROWS
    assert list(findings) == []
    assert [row.values for row in open_rows(source, "train", Findings(), 1)] == ROWS[1:]


def _csv(delimiter: str) -> str:
    quoted = '"say ""ç""\nor 中"'
    lines = [["q", "n"], ['"a, b"', "1"], [quoted, "2"], ["x", "3"]]
    return "".join(delimiter.join(line) + "\r\n" for line in lines)


@pytest.mark.parametrize(("name", "delimiter"), [("d.csv", ","), ("d.csv", "|"), ("d.csv", ";")])
def test_tables_have_rows_at_the_lines_where_they_begin(
    tmp_path: Path, name: str, delimiter: str
) -> None:
    source = write(tmp_path, name, _csv(delimiter))
    rows = read_rows(source, "train", None, Findings())
    assert [row.values for row in rows] == [{**row, "n": str(row["n"])} for row in ROWS]
    assert [row.place for row in rows] == [f"{source}:{line}" for line in (2, 3, 5)]


def test_the_index_of_pandas_is_a_column_of_its_own(tmp_path: Path) -> None:
    assert values(write(tmp_path, "d.csv", ",text\n0,a\n1,b\n")) == [
        {"column 1": "0", "text": "a"},
        {"column 1": "1", "text": "b"},
    ]


def test_a_quote_in_a_table_with_tabs_is_a_character(tmp_path: Path) -> None:
    source = write(tmp_path, "d.tsv", 'a\tb\n"he said\t1\nshe "left"\t2\n')
    assert values(source) == [{"a": '"he said', "b": "1"}, {"a": 'she "left"', "b": "2"}]


def _zip(text: bytes) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        archive.writestr("inner.jsonl", text)
        archive.writestr("__MACOSX/._inner.jsonl", b"x")
    return held.getvalue()


def _zstd(text: bytes) -> bytes:
    return bytes(pyarrow.compress(text, codec="zstd", asbytes=True))


PACKED: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": _zstd,
    ".zip": _zip,
}


@pytest.mark.parametrize("form", ["lines", "list over lines"])
@pytest.mark.parametrize("suffix", PACKED)
def test_compressed_files_are_read(tmp_path: Path, suffix: str, form: str) -> None:
    packed = PACKED[suffix](FORMS[form](ROWS).encode())
    assert values(write(tmp_path, f"d.jsonl{suffix}", packed)) == ROWS
    assert values(write(tmp_path, "d.jsonl", packed)) == ROWS


@pytest.mark.parametrize("kind", ["parquet", "arrow", "stream.arrow"])
@pytest.mark.parametrize("suffix", PACKED)
def test_compressed_tables_are_read_and_leave_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, kind: str
) -> None:
    table, held = pyarrow.Table.from_pylist(ROWS), io.BytesIO()
    if kind == "parquet":
        pyarrow.parquet.write_table(table, held)
    else:
        new = pyarrow.ipc.new_stream if kind.startswith("stream") else pyarrow.ipc.new_file
        with new(held, table.schema) as writer:
            writer.write_table(table)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    if suffix != ".zip":  # the file in the archive has the name of the archive's own test
        packed = PACKED[suffix](held.getvalue())
        assert values(write(tmp_path, f"d.{kind}{suffix}", packed)) == ROWS
        if kind != "stream.arrow":  # a stream has no mark at its beginning
            assert values(write(tmp_path, f"d.{kind}", packed)) == ROWS
    with zipfile.ZipFile(tmp_path / "d.zip", "w") as archive:
        archive.writestr(f"inner.{kind}", held.getvalue())
    assert values(str(tmp_path / "d.zip")) == ROWS
    assert not list(scratch.iterdir())


def test_a_compressed_table_that_ends_early_is_refused(tmp_path: Path) -> None:
    held = io.BytesIO()
    noise = [{"b": random.Random(number).randbytes(2000)} for number in range(100)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(noise), held)
    packed = gzip.compress(held.getvalue())
    with pytest.raises(DataError, match=r"d\.parquet\.gz.*download it again"):
        values(write(tmp_path, "d.parquet.gz", packed[: len(packed) - 40]))


TEXT = (
    '{"q": "Où est la bibliothèque ? L’été dernier, mon frère a reçu une lettre étrange."}\n'
    '{"q": "Après le dîner, nous irons à la forêt ; la fenêtre était déjà fermée, hélas."}\n'
) * 20
CHINESE = '{"q": "今天天气很好，我们去公园散步吧。你喜欢看书还是看电影？"}\n' * 30


@pytest.mark.parametrize(
    ("text", "encoding", "guessed"),
    [
        (TEXT, "utf-8", False),
        (TEXT, "utf-8-sig", False),
        (TEXT, "utf-16", False),
        (TEXT, "utf-16-le", True),
        (TEXT, "cp1252", True),
        (CHINESE, "gb18030", True),
        (CHINESE, "big5hkscs", True),
    ],
    ids=["utf-8", "bom", "utf-16", "utf-16 without mark", "cp1252", "gb18030", "big5"],
)
def test_encodings_are_recognized_and_guesses_are_counted(
    tmp_path: Path, text: str, encoding: str, guessed: bool
) -> None:
    source = write(tmp_path, "d.jsonl", text.encode(encoding, "replace"))
    findings = Findings()
    expected = text.encode(encoding, "replace").decode(encoding)
    assert values(source, findings) == [json.loads(line) for line in expected.splitlines()]
    assert findings.count(row_reasons.ENCODING_GUESSED) == int(guessed)


def test_a_damaged_byte_is_named_with_its_line_its_offset_and_the_step(tmp_path: Path) -> None:
    raw = '{"q": "käse"}\n{"q": "bé'.encode() + b'\xff"}\n'
    source = write(tmp_path, "d.jsonl", raw)
    place = raw.index(b"\xff")
    expected = rf"d\.jsonl:2: byte 0xff at offset {place} .*iconv -f utf-8 -t utf-8 -c d\.jsonl"
    with pytest.raises(DataError, match=expected):
        values(source)


def test_a_guess_names_the_first_byte_and_the_encodings_that_fit_as_well(tmp_path: Path) -> None:
    findings = Findings()
    values(write(tmp_path, "a.jsonl", b'{"q": "a"}\n{"q": "\xe9"}\n'), findings)
    assert [one.detail for one in findings] == ["cp1252; byte 0xe9 in line 2, offset 18"]
    few = Findings()
    values(write(tmp_path, "b.jsonl", '{"q": "码头在哪里？在北边。"}\n'.encode("gbk")), few)
    (found,) = few
    assert {"gb18030", "cp949"} <= set(found.detail.partition(";")[0].replace(",", "").split())


def test_lines_of_a_text_file_are_records_and_that_is_said(tmp_path: Path) -> None:
    findings = Findings()
    source = write(tmp_path, "d.txt", "One line.\n\n  Indented  \r\n")
    assert values(source, findings) == [{"text": "One line."}, {"text": "  Indented  "}]
    assert [found.reason for found in findings] == [row_reasons.TEXT_LINES]


def test_a_list_of_messages_is_one_conversation(tmp_path: Path) -> None:
    expected = [{"messages": CHAT}] * 2
    lines = "".join(json.dumps(CHAT) + "\n" for _ in range(2))
    assert values(write(tmp_path, "d.jsonl", lines)) == expected
    assert values(write(tmp_path, "d.json", json.dumps([CHAT, CHAT]))) == expected
    one = {"messages": CHAT}
    assert values(write(tmp_path, "one.json", json.dumps(one, indent=1))) == [one]


def test_an_object_of_splits_gives_the_one_that_is_asked_for(tmp_path: Path) -> None:
    source = write(tmp_path, "d.json", json.dumps({"train": ROWS[:1], "test": ROWS[1:]}))
    assert values(source) == ROWS[:1]
    assert values(source, split="test") == ROWS[1:]


def test_an_object_of_records_keeps_their_names(tmp_path: Path) -> None:
    source = write(tmp_path, "d.json", json.dumps({"a": ROWS[0], "b": ROWS[1]}))
    assert values(source) == [{"id": "a", **ROWS[0]}, {"id": "b", **ROWS[1]}]


@pytest.mark.parametrize(
    "write_table", [pyarrow.parquet.write_table, pyarrow.feather.write_feather]
)
def test_tables_of_arrow_have_no_padding(tmp_path: Path, write_table: Any) -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}
    rows = [{"messages": [CHAT[0], call], "note": None}, {"messages": CHAT, "note": "n"}]
    source = str(tmp_path / ("d.parquet" if "parquet" in write_table.__module__ else "d.feather"))
    write_table(pyarrow.Table.from_pylist(rows), source)
    assert values(source) == rows


def test_broken_rows_are_left_out_and_counted(tmp_path: Path) -> None:
    text = '{"a": 1}\n{"a": \n{"a": "\\ud83d"}\n{"a": 2}\n{"a": "unfinis'
    source, findings = write(tmp_path, "d.jsonl", text), Findings()
    assert values(source, findings) == [{"a": 1}, {"a": 2}]
    (found,) = findings
    assert (found.reason, found.count, found.place) == (row_reasons.BROKEN_ROWS, 3, f"{source}:2")
    assert "not valid JSON at column 6" in found.line
    assert found.needs_consent(())


def test_cells_that_do_not_fit_the_header_are_broken_rows(tmp_path: Path) -> None:
    source, findings = write(tmp_path, "d.csv", "a,b\n1,2\n1,2,3\n1\n"), Findings()
    assert values(source, findings) == [{"a": "1", "b": "2"}]
    assert findings.count(row_reasons.BROKEN_ROWS) == 2


LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"


@pytest.mark.parametrize(
    ("name", "content", "step"),
    [
        ("d.jsonl", LFS, "git lfs pull"),
        ("d.parquet", LFS, "git lfs pull"),
        ("d.json", "<!DOCTYPE html>\n<html>", "download the raw file"),
        ("d.csv", b"PK\x03\x04junk", "is complete"),
        ("d.jsonl", b"\x80\x04\x95junk", "pickle"),
        ("d.jsonl", b"\x00\x01\x02" * 50, "binary, not text"),
        ("d.jsonl.gz", gzip.compress(b"x" * 9999, mtime=0)[:30], "is complete"),
        ("d.jsonl", '{"a": \n' * 3, "not valid JSON"),
        ("d.jsonl", "", "no records"),
    ],
    ids=[
        *("pointer", "pointer for Parquet", "web page", "archive", "pickle", "binary"),
        *("cut archive", "no JSON", "empty"),
    ],
)
def test_what_holds_no_data_is_named_with_the_next_step(
    tmp_path: Path, name: str, content: str | bytes, step: str
) -> None:
    with pytest.raises(DataError, match=step):
        values(write(tmp_path, name, content))


def test_a_folder_is_read_by_split(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    (folder / "test").mkdir(parents=True)
    write(folder, "train-00.jsonl", FORMS["lines"](ROWS[:1]))
    write(folder, "train-01.json", FORMS["list"](ROWS[1:2]))
    write(folder / "test", "part.jsonl", FORMS["lines"](ROWS[2:]))
    write(folder, "dataset_info.json", "{}")
    write(folder, "README.md", "text")
    assert values(str(folder)) == ROWS[:2]
    assert values(str(folder), split="test") == ROWS[2:]
    with pytest.raises(DataError, match=r"no files of split validation; found splits: test, train"):
        values(str(folder), split="validation")
    with pytest.raises(DataError, match="no data files"):
        values(_empty(tmp_path))


def _empty(tmp_path: Path) -> str:
    (tmp_path / "none").mkdir()
    return str(tmp_path / "none")


plain = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
records = st.lists(
    st.fixed_dictionaries(
        {"text": plain, "value": st.none() | st.booleans() | st.integers() | plain}
    ),
    min_size=1,
    max_size=6,
)


@given(rows=records, form=st.sampled_from([name for name in FORMS if "columns" not in name]))
def test_any_records_are_read_back_from_any_form(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]], form: str
) -> None:
    source = write(tmp_path_factory.mktemp("d"), "d.json", FORMS[form](rows))
    assert values(source) == rows


def test_a_long_list_is_searched_once_not_for_every_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Work that grows with rows times length of the file would take minutes for a usual file."""
    from fttui.engine.data.sources.json_values import JsonDecoder

    seen: list[int] = []
    decode = JsonDecoder.decode

    def counting(self: JsonDecoder, text: str, position: int) -> tuple[Any, int]:
        value, end = decode(self, text, position)
        seen.append(end - position)
        return value, end

    monkeypatch.setattr(JsonDecoder, "decode", counting)
    source = write(tmp_path, "d.json", json.dumps(ROWS * 200, indent=1))
    assert len(values(source)) == 600
    assert sum(seen) <= Path(source).stat().st_size


def test_a_split_that_an_object_lacks_is_refused(tmp_path: Path) -> None:
    source = write(tmp_path, "d.json", json.dumps({"train": ROWS[:1], "test": ROWS[1:]}))
    with pytest.raises(DataError, match="validation"):
        values(source, split="validation")


def test_a_table_that_ends_inside_a_cell_is_refused(tmp_path: Path) -> None:
    source = write(tmp_path, "d.csv", 'a,b\n1,2\n3,"4 and')
    with pytest.raises(DataError, match=r"d\.csv:3: unexpected end of data; .*close every quoted"):
        values(source)


def test_one_record_with_tools_is_one_record(tmp_path: Path) -> None:
    record = {"messages": CHAT, "tools": [{"type": "function", "function": {"name": "f"}}]}
    assert values(write(tmp_path, "d.json", json.dumps(record, indent=1))) == [record]


def test_an_archive_that_is_cut_off_late_is_named(tmp_path: Path) -> None:
    lines = "".join(json.dumps({"n": n, "t": f"{n * 7919 % 10007:x}" * 9}) + "\n"
                    for n in range(20_000))  # fmt: skip
    packed = gzip.compress(lines.encode(), mtime=0)
    with pytest.raises(DataError, match=r"d\.jsonl\.gz.*download it again"):
        values(write(tmp_path, "d.jsonl.gz", packed[: len(packed) // 2]))


def test_a_word_that_begins_like_a_format_is_text(tmp_path: Path) -> None:
    assert values(write(tmp_path, "d.txt", "Orchards lie south.\n")) == [
        {"text": "Orchards lie south."}
    ]


def test_a_bad_byte_in_a_utf8_file_is_named_by_its_line(tmp_path: Path) -> None:
    lines = "".join(f'{{"text": "café {n}"}}\n' for n in range(50)).encode()
    with pytest.raises(DataError, match=r"d\.jsonl.*51"):
        values(write(tmp_path, "d.jsonl", lines + b'{"text": "caf\xe9"}\n'))


def test_maps_of_a_parquet_file_are_objects(tmp_path: Path) -> None:
    kind = pyarrow.list_(pyarrow.map_(pyarrow.string(), pyarrow.string()))
    messages = [[[("role", "user"), ("content", "q")], [("role", "assistant"), ("content", "a")]]]
    table = pyarrow.table({"messages": pyarrow.array(messages, type=kind)})
    pyarrow.parquet.write_table(table, tmp_path / "d.parquet")
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    assert values(str(tmp_path / "d.parquet")) == [{"messages": turns}]
