"""Streamed rows: an order known without them, and no more of them held than is said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from fttui.engine.config.data_reasons import NO_TARGET
from fttui.engine.data.batches.streaming import InterleavedRows, ShuffledRows, StreamedBatches
from fttui.engine.data.findings import Findings
from fttui.engine.data.records.formats import TextRecord
from fttui.engine.data.records.reader import StreamRow
from fttui.engine.data.sources import open_rows
from fttui.engine.data.tokens.examples import Example, TextExample
from fttui.engine.errors import DataError


class Numbers:
    """A source of numbered records that counts what is read."""

    def __init__(self, count: int, name: str = "n") -> None:
        self.count, self.name, self.read, self.opened = count, name, 0, 0

    def __call__(self, start: int) -> Iterator[StreamRow]:
        self.opened += 1
        for number in range(start, self.count):
            self.read += 1
            yield TextRecord(f"{self.name}{number}", str(number))

    def rows(self, block: int = 4, seed: int = 0) -> ShuffledRows:
        return ShuffledRows(self.name, self, block, seed)


def ids(rows, numbers) -> list[str]:
    return [rows.row(number).id for number in numbers]


@pytest.mark.parametrize("count", [1, 3, 4, 8, 10])
def test_every_pass_has_each_row_once_in_another_order(count: int) -> None:
    rows = Numbers(count).rows()
    passes = [ids(rows, range(p * count, (p + 1) * count)) for p in range(3)]
    assert all(sorted(one) == sorted(passes[0]) and len(set(one)) == count for one in passes)
    assert rows.size == count
    assert count < 4 or passes[0] != passes[1]


@pytest.mark.parametrize("number", [0, 5, 9, 10, 17, 35, 40])
def test_a_new_reader_finds_the_same_row(number: int) -> None:
    straight = ids(Numbers(10).rows(), range(41))
    assert ids(Numbers(10).rows(), [number]) == [straight[number]]
    rows = Numbers(10).rows()
    assert ids(rows, [20, 3, number, 3]) == [straight[n] for n in (20, 3, number, 3)]


def test_the_first_rows_of_a_long_source_need_no_more_than_their_blocks() -> None:
    source = Numbers(10**9)
    ids(source.rows(block=100), range(150))
    assert (source.read, source.opened) == (200, 1)


def test_another_seed_is_another_order() -> None:
    assert ids(Numbers(8).rows(), range(8)) != ids(Numbers(8).rows(seed=1), range(8))


@pytest.mark.parametrize("broken", [0, 3, 4, 6, 9])
def test_a_row_that_cannot_be_read_is_no_end_of_the_data(broken: int) -> None:
    whole = Numbers(10)
    trouble = [True]

    def breaks(start: int) -> Iterator[StreamRow]:
        for record in whole(start):
            if trouble and record.id == f"n{broken}":
                raise DataError(f"row {broken} is broken")
            yield record

    rows = ShuffledRows("n", breaks, block=4, seed=0)
    first = broken // 4 * 4
    ids(rows, range(first))
    for _ in range(3):
        with pytest.raises(DataError, match=f"row {broken} is broken"):
            rows.row(first)
    assert rows.size is None
    trouble.clear()
    assert ids(rows, range(20)) == ids(Numbers(10).rows(), range(20))


def test_no_rows_are_refused() -> None:
    with pytest.raises(DataError, match="no records"):
        Numbers(0).rows().row(0)


def test_shares_of_several_sources_come_out_exactly() -> None:
    sources = [Numbers(700, "a"), Numbers(20, "b")]
    rows = InterleavedRows([source.rows() for source in sources], [3, 1], seed=0)
    found = ids(rows, range(1000))
    assert Counter(one[0] for one in found) == {"a": 750, "b": 250}
    assert Counter(found[:200])["b0"] >= 1
    again = InterleavedRows([source.rows() for source in sources], [3, 1], seed=0)
    assert ids(again, [999, 1500]) == [found[999], rows.row(1500).id]


def tokenize(records: list[StreamRow], findings: Findings) -> list[TextExample]:
    """Records of multiples of three have nothing to learn."""
    findings.counted("records", len(records))
    for record in records:
        findings.note(NO_TARGET, record.id, count=int(record.id[1:]) % 3 == 0)
    texts = [record for record in records if isinstance(record, TextRecord)]
    return [TextExample(text.id, [1], [1]) for text in texts if int(text.text) % 3]


def batches(rank: int = 0, ranks: int = 1, batch: int = 2) -> StreamedBatches:
    return StreamedBatches(Numbers(12).rows(), tokenize, batch, rank, ranks)  # type: ignore[arg-type]


def taken(source: StreamedBatches, positions) -> list[list[str]]:
    return [[one.id for one in source.take(position)] for position in positions]


def test_a_position_is_all_the_state_there_is() -> None:
    straight = taken(batches(), range(12))
    assert taken(batches(), [7, 11, 0]) == [straight[7], straight[11], straight[0]]
    assert all(straight)


def test_a_sample_left_out_of_a_repeated_step_is_replaced_and_moves_no_other() -> None:
    source = batches(batch=3)
    plain = source.take(1)
    out = plain[0].id
    counted = source.findings.total("records")
    without = source.take(1, frozenset({out}))
    assert [one.id for one in without[1:]] == [one.id for one in plain[1:]]
    assert without[0].id not in {one.id for one in plain}
    assert [one.id for one in source.take(1, frozenset({out}))] == [one.id for one in without]
    assert source.findings.total("records") == counted
    everyone = frozenset(one.id for one in plain)
    assert everyone.isdisjoint(one.id for one in source.take(1, everyone))


def test_samples_are_replaced_where_the_rows_can_be_read_again() -> None:
    source = batches()
    some = [one.id for one in source.take(0)]
    assert source.why_not_replaced(some) == ""
    assert "no" not in source.why_not_kept_out([])
    assert "streamed" in source.why_not_kept_out(some)
    assert "none is left" in source.why_not_replaced([f"n{n}" for n in range(12)])
    source.why_not_read_again = "it comes over the network"
    assert source.why_not_replaced(some) == "it comes over the network"


def test_ranks_share_the_rows() -> None:
    both = [set(chain(*taken(batches(rank, 2), range(3)))) for rank in (0, 1)]
    assert not both[0] & both[1]
    useful = {f"n{n}" for n in range(12) if n % 3}
    assert both[0] | both[1] == useful


def test_a_micro_batch_without_anything_to_learn_gets_the_next_row_that_has() -> None:
    assert [len(one) for one in taken(batches(batch=1), range(24))] == [1] * 24


def test_rows_are_counted_once_although_they_are_read_again() -> None:
    source = batches()
    taken(source, [0, 1, 2, 1, 2, 3])
    findings = source.findings
    assert (findings.count(NO_TARGET), findings.total("records")) == (3, 8)
    assert source.findings is findings


def test_data_without_anything_to_learn_end_the_run() -> None:
    source = StreamedBatches(Numbers(3).rows(), lambda records, findings: [], 1)
    with pytest.raises(DataError, match="no token to learn"):
        source.take(0)


def test_files_are_read_from_a_row_on(tmp_path: Path) -> None:
    lines = tmp_path / "rows.jsonl"
    lines.write_text("{broken\n\n" + '{"text": "b"}\n\n{"text": "c"}\n')
    table = pyarrow.table({"text": list("abcdefg")})
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet", row_group_size=3)
    for start, expected in enumerate((["b", "c"], ["c"], [])):
        later = open_rows(str(lines), "train", Findings(), start)
        assert [row.values["text"] for row in later] == expected
    for start in range(8):
        rows = list(open_rows(str(tmp_path / "rows.parquet"), "train", Findings(), start))
        assert "".join(row.values["text"] for row in rows) == "abcdefg"[start:]
    assert rows == []


@pytest.mark.parametrize("batch", [1, 2, 3, 5])
@pytest.mark.parametrize("sources", [1, 2])
def test_rows_of_a_later_pass_are_not_counted_again(batch: int, sources: int) -> None:
    def tokenize(records: list[StreamRow], findings: Findings) -> list[Example]:
        findings.counted("records", len(records))
        findings.note(NO_TARGET, "d:1", count=sum(record.id == "n0" for record in records))
        return [TextExample(record.id, [1], [1]) for record in records]

    parts = [Numbers(7, name).rows() for name in ("n", "m")[:sources]]
    rows = parts[0] if sources == 1 else InterleavedRows(parts, [1.0] * sources, 0)
    source = StreamedBatches(rows, tokenize, batch)
    for position in range(60):
        source.take(position)
    assert source.findings.count(NO_TARGET) == 1
    assert source.findings.total("records") == 7 * sources
