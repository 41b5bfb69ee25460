"""Records inside one JSON object, keys that are repeated or unread, and rows of another type."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas  # type: ignore[import-untyped]
import pytest

from fttui.engine.config.data_reasons import rows as row_reasons
from fttui.engine.data.findings import Findings
from fttui.engine.data.sources import read_rows
from fttui.engine.errors import DataError

ROWS = [{"text": "a", "n": 1}, {"text": "b", "n": 2}, {"text": "c", "n": 3}]
CHAT = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]


def read(folder: Path, content: Any, name: str = "d.json") -> tuple[list[Any], Findings]:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    findings = Findings()
    rows = read_rows(str(path), "train", None, findings)
    return [row.values for row in rows], findings


def noted(findings: Findings) -> list[tuple[str, int, str]]:
    return [(one.reason.name, one.count, f"{one.place} {one.detail}") for one in findings]


@pytest.mark.parametrize("orient", ["records", "list", "columns", "split", "tight"])
@pytest.mark.parametrize("columns", [["text", "n"], ["text"]])
@pytest.mark.parametrize("count", [1, 3])
def test_forms_of_pandas_are_tables(
    tmp_path: Path, orient: str, columns: list[str], count: int
) -> None:
    expected = [{name: row[name] for name in columns} for row in ROWS[:count]]
    frame = pandas.DataFrame(expected)
    if orient in ("tight", "list"):
        content: Any = frame.to_dict(orient)
    else:
        content = frame.to_json(orient=orient)
    rows, findings = read(tmp_path, content)
    assert rows == expected
    assert noted(findings) == []


@pytest.mark.parametrize("count", [1, 3])
def test_rows_by_number_keep_it_as_their_id(tmp_path: Path, count: int) -> None:
    rows, _ = read(tmp_path, pandas.DataFrame(ROWS[:count]).to_json(orient="index"))
    assert rows == [{"id": str(number), **row} for number, row in enumerate(ROWS[:count])]


def test_the_table_form_of_pandas_has_its_index_as_a_column(tmp_path: Path) -> None:
    rows, findings = read(tmp_path, pandas.DataFrame(ROWS).to_json(orient="table"))
    assert rows == [{"index": number, **row} for number, row in enumerate(ROWS)]
    assert noted(findings) == []


@pytest.mark.parametrize("content", [[["a", 1], ["b", 2]], [["q", "a"], ["x", "y"]]])
def test_values_without_names_are_refused_with_the_step(tmp_path: Path, content: Any) -> None:
    with pytest.raises(DataError, match=r'got list, expected an object.*orient="records"'):
        read(tmp_path, content)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"text": ["a", "b"]}, [{"text": "a"}, {"text": "b"}]),
        ({"conversations": [CHAT, CHAT]}, [{"conversations": CHAT}] * 2),
        ({"messages": CHAT}, [{"messages": CHAT}]),
        ({"chosen": CHAT, "rejected": CHAT}, [{"chosen": CHAT, "rejected": CHAT}]),
        ({"data": ["a", "b"]}, [{"text": "a"}, {"text": "b"}]),
        ({"data": [CHAT, CHAT]}, [{"messages": CHAT}] * 2),
        ({"query": "q", "pos": ["a"], "neg": ["b"]}, [{"query": "q", "pos": ["a"], "neg": ["b"]}]),
        ({"train": {"text": ["a", "b"]}, "test": {"text": ["c"]}}, [{"text": "a"}, {"text": "b"}]),
        ({"version": 1, "data": {"items": ROWS}}, ROWS),
        (CHAT, [{"messages": CHAT}]),
        ({"question": "q", "documents": [{"t": 1}]}, [{"question": "q", "documents": [{"t": 1}]}]),
        (
            {"q1": {"text": "a", "hint": "h"}, "q2": {"text": "b"}},
            [{"id": "q1", "text": "a", "hint": "h"}, {"id": "q2", "text": "b"}],
        ),
    ],
)
def test_an_object_is_a_table_or_a_record(tmp_path: Path, content: Any, expected: Any) -> None:
    assert read(tmp_path, content)[0] == expected


@pytest.mark.parametrize(
    ("content", "step"),
    [
        ({"text": ["a", "b"], "label": ["x"]}, r"text \(2\), label \(1\); write a record per line"),
        ({f"w{n}": "t" for n in range(30)}, "write a list of records"),
        ({"cells": [], "nbformat": 4, "metadata": {}}, "Jupyter notebook"),
        ({"train": [["a", "b"]], "test": [["c", "d"]], "oos_test": [["e", "f"]]}, "orient="),
        ({"message": "Not Found", "status": "404"}, "download the file again"),
        ({"a": [{"x": 1}], "b": [{"x": 2}]}, "to a file of its own"),
    ],
)
def test_what_is_no_table_is_refused_with_the_step(tmp_path: Path, content: Any, step: str) -> None:
    with pytest.raises(DataError, match=step):
        read(tmp_path, content)


def test_keys_beside_the_records_are_counted(tmp_path: Path) -> None:
    rows, findings = read(tmp_path, {"info": "about", "data": ROWS, "extra": {"x": 1}})
    assert rows == ROWS
    place = f"{tmp_path / 'd.json'}:1"
    assert noted(findings) == [("unread-keys", 2, f"{place} key 'info'")]


def test_records_beside_the_records_need_consent(tmp_path: Path) -> None:
    content = json.dumps({"data": ROWS, "more": ROWS[:2]}, indent=1)
    rows, findings = read(tmp_path, content)
    assert rows == ROWS
    line = content.splitlines().index(' "more": [') + 2
    assert noted(findings) == [("unread-records", 2, f"{tmp_path / 'd.json'}:{line} key 'more'")]
    with pytest.raises(DataError, match=r"data.accept: \[unread-records\]"):
        findings.require_consent(())


REPEATED = '{"text": "a", "m": {"k": 1, "k": 2}}'


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (f'{{"text": "b"}}\n{REPEATED}\n{{"text": "c"}}\n', 2),
        (f'[{{"text": "b"}},\n{REPEATED}]', 2),
        (f'{{"data": [\n{{"text": "b"}},\n{REPEATED}]}}', 3),
        ('{\n"text": "a",\n"m": 1,\n"text": "b"}', 1),
        ('{"text": "b"}\n\n{"text": "a", "text": "b"}', 3),
        ('{"a": {"text": "b"},\n"b": {"text": "x", "text": "y"}}', 2),
    ],
    ids=["lines", "list", "list in an object", "one object", "top level", "by name"],
)
def test_a_repeated_key_is_counted_with_its_line(tmp_path: Path, content: str, line: int) -> None:
    _, findings = read(tmp_path, content)
    (found,) = findings
    assert (found.reason, found.count) == (row_reasons.REPEATED_KEYS, 1)
    assert found.place == f"{tmp_path / 'd.json'}:{line}"
    assert found.needs_consent(())


def test_a_key_repeated_with_the_same_value_loses_nothing(tmp_path: Path) -> None:
    rows, findings = read(tmp_path, '{"text": "a", "text": "a"}\n{"text": "b"}\n')
    assert rows == [{"text": "a"}, {"text": "b"}]
    assert noted(findings) == []


@pytest.mark.parametrize("wrong", ['"text"', "7", "null", "true", "[1]", '["a"]', "1.5"])
@pytest.mark.parametrize(
    "form", ["{0}\n{1}\n{0}\n", "[{0},\n{1},\n{0}]", '{{"data": [{0},\n{1},{0}]}}']
)
def test_a_row_of_the_wrong_type_is_a_broken_row(tmp_path: Path, wrong: str, form: str) -> None:
    rows, findings = read(tmp_path, form.format('{"q": 1}', wrong))
    assert rows == [{"q": 1}, {"q": 1}]
    (found,) = findings
    assert (found.reason, found.count) == (row_reasons.BROKEN_ROWS, 1)
    assert found.place == f"{tmp_path / 'd.json'}:2"


def test_broken_elements_of_a_list_of_texts_are_counted_one_by_one(tmp_path: Path) -> None:
    rows, findings = read(tmp_path, {"data": ["a", "b"], "text": 1})
    assert rows == [{"text": "a"}, {"text": "b"}]
    rows, findings = read(tmp_path, {"data": [{"q": 1}, None, None]})
    assert rows == [{"q": 1}]
    assert findings.count(row_reasons.BROKEN_ROWS) == 2


def test_texts_are_rows_where_the_others_are_texts(tmp_path: Path) -> None:
    assert read(tmp_path, ["a", "b"])[0] == [{"text": "a"}, {"text": "b"}]
    assert read(tmp_path, '"a"\n"b"\n', "d.jsonl")[0] == [{"text": "a"}, {"text": "b"}]
    assert read(tmp_path, ["a", {"text": "b"}])[0] == [{"text": "a"}, {"text": "b"}]
    rows, findings = read(tmp_path, ["a", *[{"q": n} for n in range(3)]])
    assert rows == [{"q": n} for n in range(3)]
    assert findings.count(row_reasons.BROKEN_ROWS) == 1


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{"a": 1}{"a": 2}\n{"a": 3}\n', [1, 2, 3]),
        ('\ufeff{"a": 1}\n\ufeff{"a": 2}\n', [1, 2]),
        ('{"a": 1}\r{"a": 2}\r\n{"a": 3}\n', [1, 2, 3]),
        ('\x1e{"a": 1}\n\x1e{"a": 2}\n', [1, 2]),
        ('[{"a": 1},\n{"a": 2},\n]', [1, 2]),
        ('[\n{"a": 1}\n]', [1]),
        ('[{"a": 1}]\n[{"a": 2}]', [1, 2]),
        ('[\n{"a": 1}\n]\n[\n{"a": 2}\n]', [1, 2]),
        ('{"a": 1}\n{\n"a": 2\n}\n{\n"a": 3}', [1, 2, 3]),
        ('{"a": 1},\n{"a": 2},\n', [1, 2]),
    ],
)
@pytest.mark.parametrize("name", ["d.json", "d.jsonl"])
def test_values_are_found_however_they_are_joined(
    tmp_path: Path, content: str, expected: list[int], name: str
) -> None:
    rows, findings = read(tmp_path, content, name)
    assert [row["a"] for row in rows] == expected
    assert noted(findings) == []


@pytest.mark.parametrize("at", [0, 1, 18, 19, 40])
@pytest.mark.parametrize("broken", ['{"a": ', "[", '{"a": 1', '"a', "x"])
def test_a_broken_line_does_not_make_lines_a_whole(tmp_path: Path, at: int, broken: str) -> None:
    lines = ['{"a": 1}'] * 60
    lines[at] = broken
    rows, findings = read(tmp_path, "\n".join(lines), "d.jsonl")
    assert len(rows) == 59
    assert noted(findings)[0][:2] == ("broken-rows", 1)


def test_objects_over_lines_are_recognized_by_the_beginning(tmp_path: Path) -> None:
    content = "\n".join(json.dumps({"a": {}, "b": [n]}, indent=1) for n in range(50))
    rows, findings = read(tmp_path, content.replace("{}", "\n{\n}\n"), "d.jsonl")
    assert [row["b"] for row in rows] == [[n] for n in range(50)]
    assert noted(findings) == []


def test_separators_of_unicode_do_not_end_a_row(tmp_path: Path) -> None:
    row = {"text": "a\u2028b\u2029c\u0085d"}
    path = tmp_path / "d.jsonl"
    path.write_text(json.dumps(row, ensure_ascii=False) + "\n" + json.dumps(row) + "\n")
    assert [one.values for one in read_rows(str(path), "train", None, Findings())] == [row, row]


def test_a_row_as_python_prints_it_is_named_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not as Python prints them"):
        read(tmp_path, "{'a': 1}\n{'a': 2}\n", "d.jsonl")


@pytest.mark.parametrize(
    "number", ["1" * 5000, "[" * 100_000 + "]" * 100_000], ids=["long", "deep"]
)
def test_a_value_that_python_cannot_hold_is_a_broken_row(tmp_path: Path, number: str) -> None:
    rows, findings = read(tmp_path, f'{{"a": 1}}\n{{"a": {number}}}\n', "d.jsonl")
    assert rows == [{"a": 1}]
    assert findings.count(row_reasons.BROKEN_ROWS) == 1


@pytest.mark.parametrize("key", ["instances", "examples", "data"])
def test_a_list_beside_a_text_to_learn_belongs_to_one_record(tmp_path: Path, key: str) -> None:
    record = {"instruction": "Add.", key: [{"input": "1 and 2", "output": "3"}]}
    rows, findings = read(tmp_path, record, "d.jsonl")
    assert (rows, noted(findings)) == ([record], [])
    about = {"description": "sums", key: record[key]}
    assert read(tmp_path, about)[0] == record[key]


@pytest.mark.parametrize(
    "record",
    [
        {"source": "s", "conversation": [{"input": "a", "output": "b"}]},
        {"context": CHAT, "response1": "a", "response2": "b", "votes": [{"score": 1}]},
        {"messages": CHAT, "votes": [{"score": 1}]},
    ],
)
def test_one_row_with_a_conversation_is_a_record(tmp_path: Path, record: dict[str, Any]) -> None:
    rows, findings = read(tmp_path, record, "d.jsonl")
    assert (rows, noted(findings)) == ([record], [])
    rows, _ = read(tmp_path, json.dumps(record) + "\n" + json.dumps(record), "e.jsonl")
    assert rows == [record, record]


def test_columns_of_conversations_are_a_table(tmp_path: Path) -> None:
    rows, _ = read(tmp_path, {"conversations": [CHAT, CHAT], "source": ["a", "b"]})
    assert rows == [{"conversations": CHAT, "source": name} for name in "ab"]


def test_lists_of_words_are_no_conversation(tmp_path: Path) -> None:
    words = {"data": {"dialog": ["talk", "chat"], "door": ["gate"]}}
    with pytest.raises(DataError, match="lists of different lengths"):
        read(tmp_path, words)


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        ('{"data": [{"text": "a"}], "data": [{"text": "b"}]}', ["b"]),
        ('{"text": ["a"], "text": ["b", "c"]}', ["b", "c"]),
        ('{"x": {"text": "a"}, "y": {"text": "b"}, "x": {"text": "c"}}', ["c", "b"]),
        ('{"train": {"text": ["a"], "text": ["b"]}}', ["b"]),
        ('{"info": 1, "set": {"data": [{"text": "a"}], "data": [{"text": "b"}]}}', ["b"]),
    ],
)
def test_records_lost_by_a_repeated_key_are_noted(
    tmp_path: Path, content: str, texts: list[str]
) -> None:
    rows, findings = read(tmp_path, content)
    assert [row["text"] for row in rows] == texts
    assert row_reasons.REPEATED_KEYS in {one.reason for one in findings}


@pytest.mark.parametrize(
    "content",
    [
        '{"text": ["a", "b\\ud800"]}',
        '{"text": {"0": "a", "1": "b\\ud800"}}',
        '{"train": {"text": ["a", "b\\ud800"]}}',
    ],
)
def test_a_column_with_half_of_a_surrogate_pair_has_a_broken_row(
    tmp_path: Path, content: str
) -> None:
    rows, findings = read(tmp_path, content)
    assert rows == [{"text": "a"}]
    assert [one.reason for one in findings] == [row_reasons.BROKEN_ROWS]


@pytest.mark.parametrize("kind", ["lines", "list", "columns"])
@pytest.mark.parametrize("levels", [200, 900])
def test_a_row_nested_deeper_than_a_record_is_broken(
    tmp_path: Path, kind: str, levels: int
) -> None:
    deep = f'{{"text": {"[" * levels + "]" * levels}}}'
    rows = {
        "lines": f'{deep}\n{{"text": "a"}}\n',
        "list": f'[{deep}, {{"text": "a"}}]',
        "columns": f'{{"text": [{"[" * levels + "]" * levels}, "a"]}}',
    }[kind]
    found, findings = read(tmp_path, rows)
    assert found == [{"text": "a"}]
    assert [one.reason for one in findings] == [row_reasons.BROKEN_ROWS]


@pytest.mark.parametrize(
    "content", ['[{"text": "a"},\n{"text": "b', '[{"text": "a"},\n', '{"data": [{"text": "a"}\n']
)
def test_a_list_that_ends_early_is_to_be_written_again(tmp_path: Path, content: str) -> None:
    with pytest.raises(DataError, match="the file ends early: write or download it again"):
        read(tmp_path, content)


@pytest.mark.parametrize("name", ["d.jsonl", "d.json"])
def test_rows_that_were_encoded_twice_are_not_learned_as_text(tmp_path: Path, name: str) -> None:
    texts = [json.dumps(row) for row in ROWS]
    content = json.dumps(texts) if name == "d.json" else "\n".join(map(json.dumps, texts))
    with pytest.raises(DataError, match=f"{name}:1: every row is a text that holds a JSON object"):
        read(tmp_path, content, name)
    mixed = "\n".join(map(json.dumps, [*texts, "a plain text"]))
    assert len(read(tmp_path, mixed, "d.jsonl")[0]) == 4


def test_a_list_as_python_prints_it_is_recognized(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"write rows with json\.dumps, not as Python prints them"):
        read(tmp_path, str(ROWS))
