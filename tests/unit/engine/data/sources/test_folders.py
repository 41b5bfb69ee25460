"""Which files of a folder are read as a split, and that all others are counted."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from fttui.engine.data.findings import Findings
from fttui.engine.data.sources import read_rows
from fttui.engine.errors import ConfigError, DataError
from fttui.engine.run.identity.data_content import folder_files

CARD = "---\nconfigs:\n{}\n---\n# A data set\n"
CONFIG = "- config_name: {name}\n  data_files:\n  - split: train\n    path: {name}/train-*"


def row(text: str) -> str:
    return json.dumps({"text": text}) + "\n"


def put(folder: Path, **files: str) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return folder


def read(source: Path | str, split: str = "train") -> tuple[list[dict[str, Any]], dict[str, int]]:
    findings = Findings()
    rows = read_rows(str(source), split, None, findings)
    return [one.values for one in rows], {one.reason.name: one.count for one in findings}


def texts(source: Path | str, split: str = "train") -> list[str]:
    return [one["text"] for one in read(source, split)[0]]


def test_splits_of_one_kind_are_not_mixed(tmp_path: Path) -> None:
    names = ("train_sft", "train_gen", "test_sft")
    put(tmp_path, **{f"data/{name}-00000-of-00001.jsonl": row(name) for name in names})
    with pytest.raises(DataError, match="by train: train_gen, train_sft; set"):
        read(tmp_path)
    rows, noted = read(tmp_path, "train_sft")
    assert rows == [{"text": "train_sft"}]
    assert noted == {"other-splits": 2}
    assert texts(tmp_path, "test") == ["test_sft"]


def test_the_splits_of_a_saved_dataset_are_its_folders(tmp_path: Path) -> None:
    put(tmp_path, **{f"{name}/data-00000-of-00001.jsonl": row(name) for name in ("code", "math")})
    assert texts(tmp_path) == ["code", "math"]
    put(tmp_path, **{"dataset_dict.json": "{}"})
    assert texts(tmp_path, "math") == ["math"]
    with pytest.raises(DataError, match="no files of split train; found splits: code, math"):
        read(tmp_path)


@pytest.mark.parametrize("names", [("train1", "train2"), ("more_train", "train"), ("a", "b")])
def test_files_of_one_split_are_read_together(tmp_path: Path, names: tuple[str, str]) -> None:
    put(tmp_path, **{f"{name}.jsonl": row(name) for name in names}, **{"test.jsonl": row("t")})
    assert texts(tmp_path) == list(names)


@pytest.mark.parametrize(
    ("names", "variants"),
    [
        (("train", "train_socratic"), 1),
        (("train-00000-of-00001", "more-train"), 1),
        (("train_de", "train_en"), 0),
        (("train1", "train2"), 0),
        (("train/a", "train/b_train"), 0),
        (("x/train", "y/train_b"), 0),
    ],
)
def test_files_with_longer_names_than_the_split_are_shown(
    tmp_path: Path, names: tuple[str, ...], variants: int
) -> None:
    put(tmp_path, **{f"{name}.jsonl": row(name) for name in names})
    rows, noted = read(tmp_path)
    assert len(rows) == 2
    assert noted == ({"split-variants": 1} if variants else {})


@pytest.mark.parametrize("name", ["dev", "train_sft", "prefs"])
def test_a_split_may_have_any_name(tmp_path: Path, name: str) -> None:
    put(tmp_path, **{f"{name}.jsonl": row("a"), "other.jsonl": row("b")})
    assert texts(tmp_path, name) == ["a"]


@pytest.mark.parametrize("start", ["data", "train", "web"])
def test_missing_numbers_are_counted(tmp_path: Path, start: str) -> None:
    put(tmp_path, **{f"{start}-0000{number}-of-00004.jsonl": row("a") for number in (0, 2)})
    rows, noted = read(tmp_path)
    assert len(rows) == 2
    assert noted == {"missing-files": 2}
    assert read(tmp_path / "*.jsonl")[1] == {"missing-files": 2}
    assert read(tmp_path / f"{start}-0000[02]*")[1] == {}


def test_files_of_two_versions_are_not_read_together(tmp_path: Path) -> None:
    names = ("train-00000-of-00001", "train-00000-of-00002", "train-00001-of-00002")
    put(tmp_path, **{f"data/{name}.jsonl": row(name) for name in names})
    with pytest.raises(DataError, match="two versions of train: of 00001 and of 00002 files"):
        read(tmp_path)
    assert texts(tmp_path / "data/train-*-of-00001*") == ["train-00000-of-00001"]


def test_files_of_an_earlier_save_to_disk_are_counted(tmp_path: Path) -> None:
    import datasets

    rows = datasets.Dataset.from_dict({"text": ["a", "b"]})
    rows.save_to_disk(str(tmp_path), num_shards=2)
    rows.save_to_disk(str(tmp_path), num_shards=1)
    assert len(list(tmp_path.glob("*.arrow"))) == 3
    assert read(tmp_path) == ([{"text": "a"}, {"text": "b"}], {"unread-files": 2})


def test_a_name_that_counts_absurdly_many_files_is_no_part(tmp_path: Path) -> None:
    put(tmp_path, **{"x-01-of-99999999999999.jsonl": row("a")})
    assert read(tmp_path) == ([{"text": "a"}], {})


@pytest.mark.parametrize("first", [0, 1])
def test_complete_numbers_are_not_counted(tmp_path: Path, first: int) -> None:
    numbers = range(first, first + 3)
    put(tmp_path, **{f"x-{number:05}-of-00003.jsonl": row("a") for number in numbers})
    assert read(tmp_path) == ([{"text": "a"}] * 3, {})


def test_a_folder_of_several_data_sets_is_refused(tmp_path: Path) -> None:
    configs = "\n".join(CONFIG.format(name=name) for name in ("main", "more", "not_fetched"))
    put(tmp_path, **{"README.md": CARD.format(configs), "main/train-0.jsonl": row("a")})
    assert texts(tmp_path) == ["a"]
    put(tmp_path, **{"more/train-0.jsonl": row("b")})
    with pytest.raises(DataError, match=r"2 data sets by its README.md: main, more; .*/train-\*"):
        read(tmp_path)


@pytest.mark.parametrize(
    "files",
    [
        "  data_files: good.jsonl",
        "  data_files: [good.jsonl]",
        "  data_files:\n    train: good.jsonl\n    test: raw.jsonl",
        "  data_files:\n  - split: train\n    path: [good.jsonl]",
        "  data_dir: .\n  data_files: good.*",
    ],
)
def test_the_card_says_which_files_are_of_a_split(tmp_path: Path, files: str) -> None:
    card = CARD.format(f"- config_name: default\n{files}")
    put(tmp_path, **{"README.md": card, "good.jsonl": row("a"), "raw.jsonl": row("raw")})
    assert read(tmp_path) == ([{"text": "a"}], {"unread-files": 1})
    with pytest.raises(DataError, match="no files of split validation; found splits: "):
        read(tmp_path, "validation")


@pytest.mark.parametrize(
    "path", ["../secret.jsonl", "{outside}/secret.jsonl", "secret.jsonl\n  data_dir: .."]
)
def test_a_card_names_no_files_outside_its_folder(tmp_path: Path, path: str) -> None:
    put(tmp_path, **{"secret.jsonl": row("secret")})
    named = path.format(outside=tmp_path)
    card = CARD.format(f"- config_name: default\n  data_files: {named}")
    folder = put(tmp_path / "data", **{"README.md": card, "a.jsonl": row("a")})
    assert texts(folder) == ["a"]


@pytest.mark.parametrize("card", ["no card", CARD.format("- ["), CARD.format("- 3"), "---\n1\n---"])
def test_a_card_that_names_nothing_is_ignored(tmp_path: Path, card: str) -> None:
    put(tmp_path, **{"README.md": card, "a.jsonl": row("a")})
    assert texts(tmp_path) == ["a"]


@pytest.mark.parametrize("pattern", ["", "*/*.parquet"])
def test_values_in_names_of_folders_are_columns(tmp_path: Path, pattern: str) -> None:
    for name in ("lang=en", "lang=a%20b", "lang=__HIVE_DEFAULT_PARTITION__"):
        (tmp_path / name).mkdir()
        table = pyarrow.table({"text": ["a"]})
        pyarrow.parquet.write_table(table, tmp_path / name / "part-0.parquet")
    rows, _ = read(tmp_path / pattern)
    assert rows == [{"lang": value, "text": "a"} for value in (None, "a b", "en")]


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("_delta_log/00000000000000000000.json", "Delta Lake"),
        (".hoodie/hoodie.properties", "Hudi"),
        ("metadata/v1.metadata.json", "Iceberg"),
    ],
)
def test_a_table_with_deleted_rows_is_refused(tmp_path: Path, name: str, table: str) -> None:
    put(tmp_path, **{name: "{}", "part-0.jsonl": row("deleted")})
    with pytest.raises(DataError, match=f"a table of {table}, whose files may hold rows"):
        read(tmp_path)


@pytest.mark.parametrize(
    "name", ["b.jsonl", "part-00001", "b.jsonl.bak", "b.jl", "b.jsonl.tmp", "_temporary/0/b.jsonl"]
)
def test_files_that_may_be_data_are_counted(tmp_path: Path, name: str) -> None:
    put(tmp_path, **{"a.jsonl": row("a"), name: "" if name == "b.jsonl" else row("b")})
    assert read(tmp_path) == ([{"text": "a"}], {"unread-files": 1})


@pytest.mark.parametrize("name", ["a.py", "LICENSE", "_SUCCESS", "x.png", "Makefile", "SHA256"])
def test_files_that_are_no_data_are_not_counted(tmp_path: Path, name: str) -> None:
    put(tmp_path, **{"a.jsonl": row("a"), name: "x"})
    assert read(tmp_path) == ([{"text": "a"}], {})


def test_numbered_files_without_ending_are_read_by_a_pattern(tmp_path: Path) -> None:
    put(tmp_path, **{"part-00000": row("a"), "part-00001": row("b"), "_SUCCESS": ""})
    with pytest.raises(DataError, match=r"found part-00000, part-00001, which a pattern reads"):
        read(tmp_path)
    assert texts(tmp_path / "part-*") == ["a", "b"]


def test_a_second_link_to_a_file_is_not_read_again(tmp_path: Path) -> None:
    put(tmp_path, **{"b.jsonl": row("b")})
    (tmp_path / "a.jsonl").symlink_to("b.jsonl")
    assert read(tmp_path) == ([{"text": "b"}], {"unread-files": 1})


def test_a_pattern_follows_links_that_lead_back(tmp_path: Path) -> None:
    put(tmp_path, **{"a.jsonl": row("a")})
    (tmp_path / "b.jsonl").symlink_to("a.jsonl")
    (tmp_path / "loop").symlink_to(".")
    assert texts(tmp_path / "**/*.jsonl") == ["a"]


def test_links_that_lead_back_twice_are_followed_once(tmp_path: Path) -> None:
    put(tmp_path, **{"sub/a.jsonl": row("a"), ".hidden/b.jsonl": row("b"), "c.jsonl": row("c")})
    for name in ("one", "two"):
        (tmp_path / "sub" / name).symlink_to(tmp_path)
    assert texts(tmp_path / "**/*.jsonl") == ["c", "a"]
    assert texts(tmp_path / "**/sub/**") == ["a", "c"]
    assert [one.name for one in folder_files(tmp_path)] == ["c.jsonl", "a.jsonl"]


def test_a_subfolder_that_cannot_be_read_is_no_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, **{"a.jsonl": row("a"), "closed/b.jsonl": row("b")})
    scan = os.scandir

    def scandir(path: str) -> Iterator[os.DirEntry[str]]:
        if os.fspath(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(DataError, match="closed: the folder cannot be read: Permission denied"):
        read(tmp_path)
    with pytest.raises(ConfigError, match="closed: the folder cannot be read: Permission denied"):
        read(tmp_path / "**/*.jsonl")


@pytest.mark.parametrize("make", [str, lambda folder: f"{folder}/*.jsonl"])
def test_files_behind_skipped_rows_are_not_taken_for_empty(
    tmp_path: Path, make: Callable[[Path], str]
) -> None:
    from fttui.engine.data.sources import open_rows

    put(tmp_path, **{"a.jsonl": row("a") * 3, "b.jsonl": row("b")})
    findings = Findings()
    assert [one.values for one in open_rows(make(tmp_path), "train", findings, 3)] == [
        {"text": "b"}
    ]
    assert not list(findings)
