from __future__ import annotations

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from fttui.engine.data import sources
from fttui.engine.data.findings import Findings
from fttui.engine.errors import DataError


def read_rows(source, split, limit=None, findings=None):
    return sources.read_rows(source, split, limit, findings or Findings())


def open_rows(source, split, start=0):
    return sources.open_rows(source, split, Findings(), start)


ROWS = [{"text": "a"}, {"text": "b"}, {"text": "ç"}]


@pytest.fixture
def file(tmp_path):
    def _file(name, content):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return _file


def test_every_file_kind_gives_the_same_rows(file, tmp_path):
    lines = "\n\n".join(json.dumps(row) for row in ROWS)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "d.parquet")
    for source in (
        file("d.jsonl", "\ufeff" + lines),
        file("d.json", json.dumps(ROWS)),
        str(tmp_path / "d.parquet"),
    ):
        assert [row.values for row in read_rows(source, "train")] == ROWS
        assert [row.values for row in read_rows(source, "train", limit=2)] == ROWS[:2]


def test_places_are_lines(file):
    source = file("d.jsonl", '{"a": 1}\n\n{"a": 2}\n')
    assert [row.place for row in read_rows(source, "train")] == [f"{source}:1", f"{source}:3"]


def test_rows_behind_the_limit_are_not_read(file):
    assert len(read_rows(file("d.jsonl", '{"a": 1}\nbroken'), "train", limit=1)) == 1


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("d.jsonl", '{"a": \n{"a": ]\n', r"d.jsonl:2: not valid JSON at column \d"),
        ("d.jsonl", "[1]\n[2]\n", r"d.jsonl:1: got list, expected an object"),
        ("d.jsonl", "\n", "no records"),
        ("d.json", '[{"a": 1},\n{"a": ]', r"d.json:2: not valid JSON at column 7"),
        ("d.json", "[1]", "d.json:1: got int"),
        ("d.json", "[" * 100_000, "nested too deeply"),
        ("d.parquet", "not parquet", "not readable as Parquet"),
        ("d.csv", "1,2\n3,4\n", "the first row is not a header"),
        ("d.csv", "a,b", "no records"),
    ],
)
def test_broken_files_say_where(file, name, content, message):
    with pytest.raises(DataError, match=message):
        read_rows(file(name, content), "train")


def test_missing_file_suggests_a_neighbour(file):
    present = file("train.jsonl", "{}")
    with pytest.raises(DataError, match=r"no such file .*did you mean .*/train.jsonl"):
        read_rows(present.replace("train", "trian"), "train")


def test_something_that_is_no_source_lists_what_is():
    with pytest.raises(DataError, match="a Hub dataset id, or stdlib:pairs"):
        read_rows("not a source!", "train")


@pytest.mark.parametrize("source", ["", " "])
def test_an_empty_source_is_not_the_current_folder(source):
    with pytest.raises(DataError, match="got an empty text, expected a file or a folder"):
        read_rows(source, "train")


@pytest.mark.parametrize("split", ["train[:10%]", "train+test"])
def test_a_part_of_a_split_of_a_file_is_refused_because_all_of_it_would_be_read(file, split):
    path = file("d.jsonl", '{"text": "a"}\n')
    with pytest.raises(DataError, match="only datasets of the Hub have parts of splits"):
        read_rows(path, split)


@pytest.mark.parametrize("source", ["s3://bucket/d.jsonl", "https://example.com/d"])
def test_an_address_is_to_be_downloaded(source):
    with pytest.raises(DataError, match=r"an address, .* download it first"):
        read_rows(source, "train")


def test_a_file_in_a_closed_folder_is_no_traceback(file, monkeypatch):
    path = file("d.jsonl", '{"text": "a"}\n')

    def closed(self):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "is_file", closed)
    with pytest.raises(DataError, match="cannot be read: Permission denied; check the path"):
        read_rows(path, "train")


def test_a_file_that_changes_after_its_encoding_was_found_is_no_traceback(file):
    path = file("d.jsonl", '{"text": "a"}\n' * 2000)
    rows = open_rows(path, "train", 0)
    next(rows)
    with Path(path).open("rb+") as changed:
        changed.seek(16_000)
        changed.write(b"\xff")
    with pytest.raises(DataError, match="the file was changed while it was read"):
        list(rows)


def test_hub_dataset_is_read_by_split_and_configuration(monkeypatch):
    import datasets

    def load_dataset(name, subset, split, streaming):
        assert (name, subset, split) == ("org/set", "main", "test")
        held = datasets.Dataset.from_list(ROWS)
        return held.to_iterable_dataset() if streaming else held

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    streamed = list(open_rows("org/set:main", "test", 1))
    assert [row.values for row in streamed] == ROWS[1:]
    assert streamed[0].place == "org/set:main[test] row 2"
    rows = read_rows("org/set:main", "test", limit=2)
    assert [row.values for row in rows] == ROWS[:2]
    assert rows[1].place == "org/set:main[test] row 2"


@pytest.mark.parametrize(
    ("source", "split", "expected"),
    [
        ("hf://datasets/o/n/a/b.jsonl", "train", ("o/n", {"train": "a/b.jsonl"}, None)),
        ("hf://datasets/o/n@v1/b.json", "test[:5%]", ("o/n", {"test": "b.json"}, "v1")),
        ("hf://datasets/o/n/p-*.csv", "train", ("o/n", {"train": "p-*.csv"}, None)),
    ],
)
def test_a_file_of_a_hub_dataset_is_the_split_that_is_asked_for(
    monkeypatch, source, split, expected
):
    import datasets

    def load_dataset(name, subset, split, streaming, data_files, revision=None):
        assert subset is None
        assert (name, data_files, revision) == expected
        return datasets.Dataset.from_list(ROWS)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    rows = read_rows(source, split, limit=2)
    assert [row.values for row in rows] == ROWS[:2]


def test_the_name_of_a_file_of_a_hub_dataset_has_to_be_whole():
    with pytest.raises(DataError, match="expected hf://datasets/ORG/NAME/FILE"):
        read_rows("hf://datasets/a.jsonl", "train")


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (ConnectionError("Couldn't reach the Hub"), "set data.train to a file"),
        (ValueError('Unknown split "train"'), "data.train_split"),
        (ValueError("Config name is missing."), "org/set:main"),
        (RuntimeError("boom"), "check the id"),
    ],
)
def test_hub_failures_have_a_next_step(monkeypatch, error, hint):
    import datasets

    def load_dataset(*_, **__):
        raise error

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(DataError, match=hint):
        read_rows("org/set", "train")


def test_a_stream_that_breaks_off_is_no_traceback(monkeypatch):
    import datasets

    def broken():
        yield ROWS[0]
        raise ConnectionError("Couldn't reach the Hub")

    stream = datasets.IterableDataset.from_generator(broken)
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: stream)
    rows = open_rows("org/set", "train", 0)
    assert next(rows).values == ROWS[0]
    with pytest.raises(DataError, match=r"set data\.train to a file"):
        next(rows)


def test_a_folder_is_read_through_datasets(file, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "train.jsonl").write_text('{"text": "a"}\n')
    rows = read_rows(str(tmp_path / "set"), "train")
    assert [row.values for row in rows] == [{"text": "a"}]


def test_a_pattern_reads_a_file_once_however_many_links_lead_to_it(tmp_path: Path) -> None:
    folder = tmp_path / "sub"
    folder.mkdir()
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    (folder / "b.jsonl").write_text('{"text": "b"}\n')
    (folder / "loop").symlink_to(tmp_path)
    rows = read_rows(str(tmp_path / "**/*.jsonl"), "train", None, Findings())
    assert [row.values["text"] for row in rows] == ["a", "b"]
    assert [row.place for row in rows] == [f"{tmp_path}/a.jsonl:1", f"{folder}/b.jsonl:1"]


@pytest.mark.parametrize("source", ["", "*.jsonl"])
@pytest.mark.parametrize("target", ["missing.jsonl", "gone.jsonl"])
def test_a_link_to_a_missing_file_is_refused(tmp_path: Path, source: str, target: str) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "gone.jsonl").symlink_to(target)  # the second one leads to itself
    with pytest.raises(DataError, match=rf"gone.jsonl: a link to {target}, which does not exist"):
        read_rows(str(tmp_path / source), "train", None, Findings())


def test_a_linked_subfolder_is_counted_because_it_is_not_read(tmp_path: Path) -> None:
    folder, other = tmp_path / "data", tmp_path / "other"
    for one in (folder, other):
        one.mkdir()
        (one / "a.jsonl").write_text('{"text": "a"}\n')
    (folder / "sub").symlink_to(other)
    findings = Findings()
    assert len(read_rows(str(folder), "train", None, findings)) == 1
    assert [(one.reason.name, one.count, one.place) for one in findings] == [
        ("unread-files", 1, str(folder / "sub"))
    ]


@pytest.mark.parametrize("ending", ["csv", "tsv", "tab", "json", "jsonl", "ndjson"])
def test_a_folder_reads_files_of_every_text_ending(ending: str, tmp_path: Path) -> None:
    separator = {"csv": ",", "tsv": "\t", "tab": "\t"}.get(ending)
    table = f"prompt{separator}completion\na{separator}b\nc{separator}d\n"
    rows = '{"prompt": "a", "completion": "b"}\n{"prompt": "c", "completion": "d"}\n'
    (tmp_path / f"train.{ending}").write_text(table if separator else rows)
    found = [row.values for row in read_rows(str(tmp_path), "train")]
    assert found == [{"prompt": "a", "completion": "b"}, {"prompt": "c", "completion": "d"}]
