from __future__ import annotations

from pathlib import Path

import pytest

from fttui.engine.hub.journal_index import INDEX_EVERY_BYTES, MAX_CHUNK_BYTES, JournalIndex
from fttui.engine.protocol.codec import peek_seq, unpack_history
from fttui.engine.run.journal import FrameWriter
from tests.support.engine_double import EngineDouble, journal_payloads, make_run


@pytest.fixture
def engine(tmp_path: Path) -> EngineDouble:
    return EngineDouble(make_run(tmp_path))


def drained(history: JournalIndex) -> list[bytes]:
    found: list[bytes] = []
    while records := history.advance():
        found += records
    return found


def pulled(history: JournalIndex, after: int, max_bytes: int) -> list[bytes]:
    found: list[bytes] = []
    while True:
        chunk = history.chunk(1, after, max_bytes)
        if not chunk.blob:
            assert (chunk.first_seq, chunk.last_seq) == (0, after)
            return found
        records = list(unpack_history(chunk.blob))
        assert [chunk.first_seq, chunk.last_seq] == [peek_seq(records[0]), peek_seq(records[-1])]
        assert chunk.head_seq == history.last_seq
        found += records
        after = chunk.last_seq


def test_the_tail_gives_each_record_once(engine: EngineDouble) -> None:
    history = JournalIndex(engine.run.journal)
    assert history.advance() == []
    engine.start()
    engine.train(10)
    assert drained(history) == journal_payloads(engine.run)
    engine.train(2)
    assert [peek_seq(p) for p in drained(history)] == [13, 14]
    assert history.last_seq == 14


def test_any_part_of_a_long_past_is_served_whole(engine: EngineDouble) -> None:
    engine.start()
    engine.train(4000)
    history = JournalIndex(engine.run.journal)
    everything = drained(history)
    assert engine.run.journal.stat().st_size > 4 * INDEX_EVERY_BYTES
    for after in (0, 1, 777, 2500, len(everything) - 1, len(everything)):
        assert pulled(history, after, 100_000) == everything[after:]


def test_a_chunk_is_bounded_but_never_empty_while_there_is_more(engine: EngineDouble) -> None:
    engine.start()
    engine.train(4000)
    history = JournalIndex(engine.run.journal)
    everything = drained(history)
    assert list(unpack_history(history.chunk(1, 0, 1).blob)) == everything[:1]
    assert list(unpack_history(history.chunk(1, 0, -5).blob)) == everything[:1]
    greedy = list(unpack_history(history.chunk(1, 0, 10**12).blob))
    assert len(everything) > len(greedy)
    assert sum(map(len, greedy)) <= MAX_CHUNK_BYTES


def test_nothing_beyond_the_published_tail_is_served(engine: EngineDouble) -> None:
    engine.start()
    history = JournalIndex(engine.run.journal)
    drained(history)
    engine.train(5)
    assert len(pulled(history, 0, 10**6)) == 2
    drained(history)
    assert len(pulled(history, 0, 10**6)) == 7


def test_an_empty_journal_and_a_future_sequence_number_give_an_empty_chunk(
    engine: EngineDouble,
) -> None:
    history = JournalIndex(engine.run.journal)
    assert history.chunk(3, 0, 100).blob == b""
    engine.start()
    drained(history)
    assert history.chunk(3, 99, 100).last_seq == 99


def test_whole_frames_that_are_no_records_are_counted_and_skipped(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    writer = FrameWriter(run.journal, run.journal_lock)
    writer.append(b"\x93\x01\x02\x03")
    writer.close()
    engine = EngineDouble(run)
    engine.start()
    history = JournalIndex(run.journal)
    assert len(drained(history)) == 2
    assert history.unreadable == 1
    assert len(pulled(history, 0, 1000)) == 2
