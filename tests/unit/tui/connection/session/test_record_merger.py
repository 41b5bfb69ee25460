from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fttui.engine.protocol.codec import encode, peek_seq
from fttui.engine.protocol.events import LogEmitted, Record
from fttui.tui.connection.session.record_merger import (
    MAX_DELIVERED,
    MAX_HELD,
    RecordMerger,
    deliveries,
)


def payload(seq: int) -> bytes:
    event = LogEmitted(level="info", text="x")
    return encode(Record(seq=seq, time=0.0, step=0, timeline=1, event=event))


def seqs(payloads: list[bytes]) -> list[int]:
    return [peek_seq(p) for p in payloads]


def waiting(merger: RecordMerger) -> bool:
    """Asked anew each time: the type checker takes a property for a constant."""
    return merger.gap


def test_records_ahead_wait_for_those_before_them() -> None:
    merger = RecordMerger()
    assert seqs(merger.live([payload(1), payload(3), payload(4)])) == [1]
    assert waiting(merger)
    assert seqs(merger.history([payload(1), payload(2)])) == [2, 3, 4]
    assert not waiting(merger)
    assert merger.live([payload(2), payload(4)]) == []
    assert merger.last_seq == 4


def test_what_the_journal_lacks_is_not_waited_for() -> None:
    merger = RecordMerger()
    merger.live([payload(1), payload(5)])
    assert seqs(merger.history([payload(4)])) == [4, 5]


def test_a_flood_ahead_is_bounded_and_pulled_later() -> None:
    merger = RecordMerger()
    merger.live(payload(seq) for seq in range(2, MAX_HELD + 100))
    assert seqs(merger.history([payload(1)]))[-1] == MAX_HELD + 1
    assert not merger.gap


@given(st.data(), st.integers(1, 60))
def test_any_losses_and_repetitions_end_in_the_journal_itself(
    data: st.DataObject, length: int
) -> None:
    journal = [payload(seq) for seq in range(1, length + 1)]
    merger = RecordMerger()
    seen: list[bytes] = []
    for _ in range(data.draw(st.integers(0, 8))):
        if data.draw(st.booleans()):
            picked = data.draw(st.lists(st.sampled_from(journal), max_size=20))
            seen += merger.live(picked)
        else:
            count = data.draw(st.integers(1, 20))
            seen += merger.history(journal[merger.last_seq : merger.last_seq + count])
        assert seqs(seen) == list(range(1, len(seen) + 1))
    seen += merger.history(journal[merger.last_seq :])
    assert seen == journal
    assert not merger.gap


def test_deliveries_are_bounded_and_count_what_they_cannot_show() -> None:
    newer = payload(2).replace(b"LogEmitted", b"LogEnlaced")
    arrived = list(deliveries([payload(1), newer, payload(3)]))
    assert [[r.seq for r in a.records] for a in arrived] == [[1, 3]]
    assert arrived[0].unknown == 1
    sizes = [len(a.records) for a in deliveries([payload(1)] * (MAX_DELIVERED + 1))]
    assert sizes == [MAX_DELIVERED, 1]
