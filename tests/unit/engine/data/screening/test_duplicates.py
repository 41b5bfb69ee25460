"""Repeated records are counted, and dropped if the configuration says so."""

from __future__ import annotations

import sys

import pytest

from fttui.engine.config.data_reasons import (
    DROPPED_DUPLICATES,
    DUPLICATES,
    EVAL_OVERLAP,
    HELD_OUT_OVERLAP,
)
from fttui.engine.config.data_reasons.reason import Reason
from fttui.engine.data.findings import Findings
from fttui.engine.data.reading import SourceRecords
from fttui.engine.data.records.formats import (
    CompletionRecord,
    MessagesRecord,
    PairRecord,
    Record,
    TextRecord,
)
from fttui.engine.data.screening.duplicates import Dedup, deduplicated
from fttui.engine.errors import DataError

LONG = (
    "the ferry leaves the northern harbour at seven in the morning and returns in the late evening "
    "after it has called at every island of the outer chain where goods are loaded and letters are "
    "handed over to the keeper of the lighthouse"
)


def text(number: int, content: str) -> TextRecord:
    return TextRecord(f"t:{number}", content, place=f"d.jsonl:{number}")


def found(
    train: list[list[Record]], held: list[Record], dedup: Dedup, *, own_eval: bool = True
) -> tuple[list[list[str]], dict[Reason, tuple[int, str]]]:
    """Return the ids that are left for training, and count and place of each finding."""
    records = SourceRecords(train, held, [], Findings())
    left = deduplicated(records, dedup, own_eval=own_eval)
    notes = {one.reason: (one.count, one.place) for one in left.findings}
    return [[one.id for one in part] for part in left.train], notes


TRAIN: list[list[Record]] = [
    [text(1, "a"), text(2, "b"), text(3, "a")],
    [text(4, "b"), text(5, "c")],
]


def test_duplicates_and_overlap_are_counted_with_their_first_place() -> None:
    left, notes = found(TRAIN, [text(9, "z"), text(8, "c")], "off")
    assert left == [["t:1", "t:2", "t:3"], ["t:4", "t:5"]]
    assert notes == {DUPLICATES: (2, "d.jsonl:3"), EVAL_OVERLAP: (1, "d.jsonl:8")}
    _, notes = found(TRAIN, [text(8, "c")], "off", own_eval=False)
    assert notes[HELD_OUT_OVERLAP] == (1, "d.jsonl:8")


def test_the_first_of_equal_records_is_kept_and_evaluation_data_leave_training() -> None:
    left, notes = found(TRAIN, [text(8, "a")], "exact")
    assert left == [["t:2"], ["t:5"]]
    assert notes == {DROPPED_DUPLICATES: (3, "d.jsonl:1")}


def test_records_that_differ_are_no_duplicates() -> None:
    chat = ({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"})
    records: list[Record] = [
        text(1, "a"),
        CompletionRecord("2", "a", ""),
        CompletionRecord("3", "", "a"),
        PairRecord("4", "a", "b", score=0.5),
        PairRecord("5", "a", "b", score=0.6),
        PairRecord("6", "b", "a", score=0.5),
        MessagesRecord("7", chat),
        MessagesRecord("8", chat[:1]),
    ]
    left, notes = found([records], [], "exact")
    assert left == [[one.id for one in records]]
    assert notes == {}


def test_near_duplicates_share_most_of_their_words() -> None:
    records: list[Record] = [
        text(1, LONG),
        text(2, LONG.replace("lighthouse", "Lighthouse ").upper()),
        text(3, LONG + " again"),
        text(4, " ".join(reversed(LONG.split()))),
        text(5, "short"),
        text(6, "brief"),
    ]
    left, notes = found([records], [], "near")
    assert left == [["t:1", "t:4", "t:5", "t:6"]]
    assert notes == {DROPPED_DUPLICATES: (2, "d.jsonl:2")}


def test_a_source_of_which_nothing_is_left_is_refused() -> None:
    with pytest.raises(
        DataError, match=r"begins at d\.jsonl:2 repeats .*none is left \(data.dedup: exact\)"
    ):
        found([[text(1, "a")], [text(2, "a")]], [], "exact")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasketch", None)
    with pytest.raises(DataError, match=r"pip install 'fttui\[dedup\]'"):
        found(TRAIN, [], "near")
