"""Tables as text: quotes that join rows, tables appended to others, other ways to write cells."""

from __future__ import annotations

from pathlib import Path

import pytest

from fttui.engine.config.data_reasons import rows as row_reasons
from fttui.engine.data.findings import Findings
from fttui.engine.data.sources import files, read_rows
from fttui.engine.errors import DataError


def read(folder: Path, content: str | bytes, name: str = "d.csv") -> tuple[list[dict], Findings]:  # type: ignore[type-arg]
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    findings = Findings()
    rows = read_rows(str(path), "train", None, findings)
    return [row.values for row in rows], findings


@pytest.mark.parametrize(
    ("content", "joined"),
    [
        ('q,a\nx,"one\ny,two\nz,three"\nv,w\n', 2),
        ('q,a,n\nb,"c,d\ne,f,g\nh,i",j\nk,l,m\n', 2),
        ('q;a\nx;"1 m\ny;2 "\nz;3\n', 1),
        ('q,a\nx,"b\n' + "c,d\n" * 9 + 'e\nf,g"\nh,i\n', 11),
        ('q,a\n"x,y","one\nz,three"\n', 1),
    ],
)
def test_rows_joined_by_a_quote_are_counted(tmp_path: Path, content: str, joined: int) -> None:
    _, findings = read(tmp_path, content)
    (found,) = findings
    assert (found.reason, found.count) == (row_reasons.JOINED_ROWS, joined)
    assert found.place == f"{tmp_path / 'd.csv'}:2"
    assert found.needs_consent(())


@pytest.mark.parametrize(
    "cell",
    [
        "Yes, I think\nNo, I do not",
        "- a\n- b\n- c",
        "def f(a, b):\n    return a, b",
        'He said ""no"",\nand left',
        "\n\nblank lines\n\n",
        "I see one, I think.\n",
    ],
)
def test_cells_with_line_ends_are_cells(tmp_path: Path, cell: str) -> None:
    rows, findings = read(tmp_path, f'q,a\nx,"{cell}"\ny,z\n')
    assert rows == [{"q": "x", "a": cell.replace('""', '"')}, {"q": "y", "a": "z"}]
    assert not any(found.needs_consent(()) for found in findings)


def test_lines_in_cells_of_the_only_column_are_shown(tmp_path: Path) -> None:
    rows, findings = read(tmp_path, 'text\n"one\ntwo"\nthree\n')
    assert rows == [{"text": "one\ntwo"}, {"text": "three"}]
    assert [found.reason for found in findings] == [row_reasons.LINES_IN_CELLS]


def test_rows_of_empty_cells_are_counted_and_blank_lines_are_not(tmp_path: Path) -> None:
    rows, findings = read(tmp_path, "q,a\n1,x\n\n,\n , \n2,y\n\n")
    assert rows == [{"q": "1", "a": "x"}, {"q": "2", "a": "y"}]
    assert [(found.reason, found.count) for found in findings] == [(row_reasons.EMPTY_ROWS, 2)]
    assert not any(found.needs_consent(()) for found in findings)


def test_a_table_that_was_appended_to_another_has_no_header_inside(tmp_path: Path) -> None:
    rows, findings = read(tmp_path, "\ufeffq,a\n1,x\n\ufeffq,a\n2,y\n")
    assert rows == [{"q": "1", "a": "x"}, {"q": "2", "a": "y"}]
    (found,) = findings
    assert (found.reason, found.detail) == (row_reasons.BROKEN_ROWS, "the row repeats the header")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-32"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_tables_in_wide_encodings_and_with_any_line_ends(
    tmp_path: Path, encoding: str, end: str
) -> None:
    content = end.join(["q,a", 'x,"one', 'two"', "é,z", ""])
    rows, _ = read(tmp_path, content.encode(encoding))
    assert rows == [{"q": "x", "a": f"one{end}two"}, {"q": "é", "a": "z"}]


def test_line_ends_may_be_mixed(tmp_path: Path) -> None:
    rows, findings = read(tmp_path, "q,a\r\n1,x\n2,y\r3,z\r\n")
    assert [row["a"] for row in rows] == ["x", "y", "z"]
    assert list(findings) == []


def test_quotes_may_be_escaped_with_a_backslash(tmp_path: Path) -> None:
    rows, findings = read(tmp_path, 'q,a\n"say \\"x, y\\"",1\n"c:\\\\d",2\n')
    assert rows == [{"q": 'say "x, y"', "a": "1"}, {"q": "c:\\d", "a": "2"}]
    assert list(findings) == []


def test_the_line_that_names_the_delimiter_is_no_header(tmp_path: Path) -> None:
    assert read(tmp_path, "sep=;\nq;a\n1;x, y\n")[0] == [{"q": "1", "a": "x, y"}]


def test_a_nul_byte_beyond_the_beginning_breaks_its_row(tmp_path: Path) -> None:
    content = "q,a\n" + "x,y\n" * 20_000 + "x,\x00\n"
    rows, findings = read(tmp_path, content)
    assert len(rows) == 20_000
    assert findings.count(row_reasons.BROKEN_ROWS) == 1


def test_text_behind_a_quoted_cell_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"d\.csv:3: .*write a quote inside a quoted cell twice"):
        read(tmp_path, 'q,a\nx,"one\ny,"two"\n')


def test_quoted_cells_of_tables_with_tabs_may_have_lines(tmp_path: Path) -> None:
    rows, findings = read(tmp_path, 'q\ta\n1\t"one\n\ntwo ""x"" y"\n2\tz\n', "d.tsv")
    assert rows == [{"q": "1", "a": 'one\n\ntwo "x" y'}, {"q": "2", "a": "z"}]
    assert list(findings) == []


@pytest.mark.parametrize(
    ("content", "cells"),
    [
        ("q,a\nx ->, Paris\n", ["x ->", " Paris"]),
        ("q;a\nx ->; Paris\n", ["x ->", " Paris"]),
        ('q,a\nhow much, "lots" of it\nv,w\n', ["how much", ' "lots" of it']),
        ('q, a\n"x, y", "z"\n', ["x, y", "z"]),
        ("q, a\nx, y\n", ["x", "y"]),
        ('q,a\nx, "y, z"\n', ["x", "y, z"]),
        ("q; a\nx; y\n", ["x", "y"]),
    ],
)
def test_a_space_before_a_cell_is_its_text_unless_the_table_is_spaced(
    tmp_path: Path, content: str, cells: list[str]
) -> None:
    rows, findings = read(tmp_path, content)
    assert list(rows[0].values()) == cells
    assert not list(findings)


@pytest.mark.parametrize(
    ("content", "rows"),
    [
        ("q, in words;a\nx;y\n", [{"q, in words": "x", "a": "y"}]),
        ("q (a, b, c)\ta\nx, y\tz\n", [{"q (a, b, c)": "x, y", "a": "z"}]),
        ("q|r,a\n1|2,x\n", [{"q|r": "1|2", "a": "x"}]),
    ],
)
def test_of_several_delimiters_in_the_header_that_of_the_rows_is_used(
    tmp_path: Path, content: str, rows: list[dict[str, str]]
) -> None:
    assert read(tmp_path, content)[0] == rows


def test_a_quoted_cell_with_tab_and_line_end_is_not_two_rows(tmp_path: Path) -> None:
    rows, findings = read(tmp_path, 'q\ta\n"x\ty\nz"\tw\n', "d.tsv")
    assert rows == [{"q": "x\ty\nz", "a": "w"}]
    assert [found.reason for found in findings] == [row_reasons.JOINED_ROWS]


def test_a_cell_of_spaces_and_quotes_does_not_turn_quotes_into_text(tmp_path: Path) -> None:
    rows, _ = read(tmp_path, 'text\n"  ""x"""\n"y\nz"\n', "d.tsv")
    assert [row["text"] for row in rows] == ['  "x"', "y\nz"]


@pytest.mark.parametrize(
    ("content", "line", "offset"),
    [
        (b"\xef\xbb\xbfq,a\nx,\xe4\n", 2, 9),
        ("q,a\nx,y\n".encode("utf-16")[:-1], 2, 16),
        (b"\xff\xfe" + "q,a\nx,".encode("utf-16-le") + b"\x00\xd8a\x00", 2, 14),
    ],
)
def test_content_that_does_not_fit_its_byte_order_mark_has_a_place(
    tmp_path: Path, content: bytes, line: int, offset: int
) -> None:
    with pytest.raises(DataError, match=rf"d.csv:{line}: byte 0x\w\w at offset {offset} "):
        read(tmp_path, content)


@pytest.mark.parametrize("at_once", [1, 3, 5, 1 << 20])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("q,a\nä,ö\nü,".encode() + b"\xff\n", "d.csv:3: byte 0xff at offset 13 "),
        ("q,a\nä,ö\n".encode("utf-16") + b"\x00\xd8a\x00", "d.csv:3: byte 0x00 at offset 18 "),
        ("\ufeffq,a\nä,".encode() + b"\xc3", "d.csv:2: byte 0xc3 at offset 10 "),
    ],
)
def test_the_first_wrong_byte_is_found_in_parts_of_any_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int, content: bytes, message: str
) -> None:
    monkeypatch.setattr(files, "_READ_AT_ONCE", at_once)
    with pytest.raises(DataError, match=message):
        read(tmp_path, content)


@pytest.mark.parametrize("at_once", [1, 3, 1 << 20])
def test_a_guess_names_the_first_byte_beyond_ascii(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(files, "_READ_AT_ONCE", at_once)
    rows, findings = read(tmp_path, "q,a\nx,für\n".encode("latin-1"))
    assert rows == [{"q": "x", "a": "für"}]
    assert [one.detail for one in findings] == ["cp1252; byte 0xfc in line 2, offset 7"]
