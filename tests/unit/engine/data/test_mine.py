"""Mining of hard negatives: what is found, and what is left out and counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from fttui.engine.data.mine import (
    MineOptions,
    mine,
    mine_within_memory,
    read_corpus,
    read_pairs,
    write_rows,
)
from fttui.engine.data.records.formats import PairRecord
from fttui.engine.errors import DataError

pytest.importorskip("sentence_transformers")


class Letters:
    """Embeds a text by how often it has each letter."""

    device = torch.device("cpu")

    def encode_document(self, texts: list[str], **_: Any) -> Any:
        counts = [[text.count(one) for one in "abcdefgh"] for text in texts]
        found = np.array(counts, dtype=np.float32)
        return found / np.linalg.norm(found, axis=1, keepdims=True)

    encode_query = encode_document

    def similarity(self, queries: Any, texts: Any) -> torch.Tensor:
        return torch.as_tensor(queries) @ torch.as_tensor(texts).T

    def similarity_pairwise(self, queries: Any, texts: Any) -> torch.Tensor:
        return (torch.as_tensor(queries) * torch.as_tensor(texts)).sum(dim=1)


def pair(anchor: str, positive: str, *negatives: str, **more: Any) -> PairRecord:
    return PairRecord(f"id {anchor}", anchor, positive, negatives, **more)


PAIRS = [
    pair("aaaa", "aaab"),
    pair("bbbb", "bbba", "cccc", weight=2.0),
    pair("aabb", "aabbc", label=7),
    pair("cccc", "cccd", label=7),
    pair("hhhh", "hhhg"),
]


def options(**limits: Any) -> MineOptions:
    return MineOptions(source="p.jsonl", out="o.jsonl", model="m", **limits)


def mined(records: list[PairRecord], **limits: Any) -> Any:
    return mine(records, Letters(), options(**limits))


def test_the_nearest_texts_that_do_not_match_become_negatives() -> None:
    found = mined(PAIRS, negatives=1, relative_margin=0.05)
    rows = {row["anchor"]: row for row in found.rows}
    assert rows["aaaa"] == {
        "id": "id aaaa", "anchor": "aaaa", "positive": "aaab", "negatives": ["aabbc"]
    }  # fmt: skip
    assert rows["bbbb"]["negatives"] == ["cccc", "aabbc"], "those of the record stay, first"
    assert rows["bbbb"]["weight"] == 2
    assert rows["cccc"]["label"] == 7
    assert rows["cccc"]["negatives"] == ["hhhg"], "nearer texts belong to its label"
    assert found.left_out["candidates: a pair of the same label has the text"] == 1
    assert found.found == sum(len(row.get("negatives", ())) for row in found.rows) - 1


def test_what_is_left_out_is_counted_by_reason() -> None:
    records = [*PAIRS, pair("aaaa", "aaab"), pair("x", " ")]
    found = mined(records, negatives=2, max_score=0.5, relative_margin=0.4)
    assert found.left_out["pairs that repeat another one"] == 1
    assert found.left_out["pairs with an empty text"] == 1
    assert len(found.rows) == len(PAIRS)
    for limits in ({"relative_margin": 0.4}, {"max_score": 0.5}, {"min_score": 0.5}, {"margin": 1}):
        one = mined(PAIRS, negatives=2, **({"relative_margin": None} | limits))
        (option,) = ("--" + name.replace("_", "-") for name in limits)
        (count,) = (n for reason, n in one.left_out.items() if f"({option})" in reason)
        assert count > 0


def test_further_texts_are_searched_too() -> None:
    records = [pair("aaaa", "aaab"), pair("hhhh", "hhhg")]
    found = mine(records, Letters(), options(negatives=1), ["aaccc", "hhccc"])
    assert [row["negatives"] for row in found.rows] == [["aaccc"], ["hhccc"]]


def test_texts_that_differ_in_white_space_around_them_are_the_same() -> None:
    records = [pair("aaaa", "aaab"), pair("bbbb", "bbba", "cccc"), pair("hhhh", "hhhg")]
    corpus = [" aaab", "aaaa\n", "cccc ", "ccch", " ccch"]
    found = mine(records, Letters(), options(negatives=9, relative_margin=None), corpus)
    rows = {row["anchor"]: row["negatives"] for row in found.rows}
    assert {one.strip() for one in rows["aaaa"]} == {"bbba", "cccc", "ccch", "hhhg"}
    for texts in rows.values():
        assert len({one.strip() for one in texts}) == len(texts)
    assert found.left_out["candidates: the text is the anchor itself"] == 1
    assert found.left_out["candidates: the text is a positive of the anchor"] == 1
    assert found.left_out["candidates: the record, or a nearer candidate, has the same text"] == 6


def test_a_pair_without_a_mined_negative_is_written_and_counted() -> None:
    found = mined([pair("aaaa", "aaab"), pair("aaac", "aaab")], negatives=1)
    assert (len(found.rows), found.found, found.bare) == (2, 0, 2)
    assert not [reason for reason in found.left_out if "pairs" in reason]


def test_a_corpus_has_its_texts_in_lines_or_in_a_column(tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_bytes("\ufeffa\u2028b\n\n \nc".encode())
    assert read_corpus(str(lines)) == (["a\u2028b", "c"], [f"{lines}: 2 texts to search"])
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "a"}\n{"text": " "}\n')
    assert read_corpus(str(rows))[0] == ["a"]
    assert "texts left out because they are empty: 1" in read_corpus(str(rows))[1][0]
    rows.write_text('{"text": "a"}\n{"query": "b"}\n')
    with pytest.raises(DataError, match=r"rows\.jsonl:2: no column text; found query"):
        read_corpus(str(rows))
    lines.write_bytes(b"\x81\x8d\xff\xfe\x00" * 9)
    with pytest.raises(DataError, match=r"lines\.txt"):
        read_corpus(str(lines))


def test_nothing_to_mine_is_refused() -> None:
    with pytest.raises(DataError, match=r"p.jsonl: no pair has both texts"):
        mined([pair("", "x")])


def test_what_is_written_is_read_as_training_reads_it(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    write_rows(mined(PAIRS[:2], negatives=1).rows, out)
    pairs, said = read_pairs(MineOptions(source=str(out), out="x", model="m"), lambda *_: None)
    assert [one.negatives for one in pairs] == [("bbba",), ("cccc", "aaab")]
    assert [(one.anchor, one.positive, one.weight) for one in pairs] == [
        ("aaaa", "aaab", 1.0),
        ("bbbb", "bbba", 2.0),
    ]
    assert any("2 records (pairs)" in line for line in said)
    with pytest.raises(DataError, match="cannot be written"):
        write_rows([], tmp_path / "no" / "folder.jsonl")
    written = out.read_text()
    with pytest.raises(DataError, match=r"out\.jsonl exists"):
        write_rows([], out)
    assert out.read_text() == written


def test_scored_pairs_are_refused_with_their_place(tmp_path: Path) -> None:
    source = tmp_path / "s.jsonl"
    row = {"sentence1": "a", "sentence2": "b", "score": 0.5}
    source.write_text(json.dumps(row) + "\n")
    with pytest.raises(DataError, match=r"s.jsonl:1: the pair has a score"):
        read_pairs(MineOptions(source=str(source), out="x", model="m"), lambda *_: None)


def test_columns_of_other_names_are_named_by_an_option(tmp_path: Path) -> None:
    source = tmp_path / "s.jsonl"
    source.write_text(json.dumps({"q": "a", "p": "b"}) + "\n")
    options = MineOptions(source=str(source), out="x", model="m")
    with pytest.raises(DataError, match="fttui mine takes such names as --column FIELD=COLUMN"):
        read_pairs(options, lambda *_: None)
    named = msgspec.structs.replace(options, columns={"anchor": "q", "positive": "p"})
    (found,), _ = read_pairs(named, lambda *_: None)
    assert (found.anchor, found.positive) == ("a", "b")


def test_a_refused_candidate_costs_no_negative() -> None:
    """The nearest texts belong to the label of the pair; the next one is found all the same."""
    records = [
        pair("aaaa", "aaab", label=1),
        pair("aaac", "aaad", label=1),
        pair("aabb", "aabbb"),
        pair("aacc", "aaccc"),
    ]
    first = mined(records, negatives=1, relative_margin=None).rows[0]
    assert len(first["negatives"]) == 1
    assert not {"aaac", "aaad"} & set(first["negatives"])


def test_too_little_memory_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Letters, "encode_document", full)
    monkeypatch.setattr(Letters, "encode_query", full)
    with pytest.raises(DataError, match="--batch"):
        mine_within_memory(PAIRS, Letters(), options(), ())
