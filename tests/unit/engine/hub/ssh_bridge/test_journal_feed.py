from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from fttui.engine.errors import JournalReplaced
from fttui.engine.hub.ssh_bridge.journal_feed import JournalFeed
from fttui.engine.protocol.codec import peek_seq
from fttui.engine.protocol.ssh_protocol import JournalPosition
from tests.support.engine_double import EngineDouble, journal_payloads, make_run

EVERYTHING = 1 << 20


@pytest.fixture
def engine(tmp_path: Path) -> EngineDouble:
    engine = EngineDouble(make_run(tmp_path))
    engine.start()
    engine.train(5)
    return engine


def position(engine: EngineDouble, seq: int, offset: int) -> JournalPosition:
    payload = journal_payloads(engine.run)[seq - 1]
    return JournalPosition(seq=seq, crc=zlib.crc32(payload), offset=offset)


def seqs(feed: JournalFeed) -> list[int]:
    batch = feed.next(EVERYTHING)
    return [peek_seq(payload) for payload in batch.payloads] if batch else []


def test_the_feed_reads_each_record_once_and_counts_what_remains(engine: EngineDouble) -> None:
    feed = JournalFeed(engine.run.journal)
    assert feed.remaining_bytes() == engine.run.journal.stat().st_size
    assert seqs(feed) == [1, 2, 3, 4, 5, 6, 7]
    assert (feed.last_seq, feed.remaining_bytes(), seqs(feed)) == (7, 0, [])
    engine.train(1)
    assert seqs(feed) == [8]


@pytest.mark.parametrize("hint", ["right", "wrong", "none"])
def test_the_feed_resumes_after_a_record_whatever_its_offset_hint(
    engine: EngineDouble, hint: str
) -> None:
    feed = JournalFeed(engine.run.journal)
    batch = feed.next(EVERYTHING)
    assert batch is not None
    offset = {"right": batch.offset, "wrong": 13, "none": 0}[hint]
    engine.train(2)
    resumed = JournalFeed(engine.run.journal)
    resumed.resume(position(engine, 7, offset))
    assert resumed.last_seq == 7
    assert seqs(resumed) == [8, 9]


def test_a_journal_with_another_record_of_that_number_is_refused(engine: EngineDouble) -> None:
    other = JournalPosition(seq=4, crc=1, offset=0)
    with pytest.raises(JournalReplaced, match=f"record 4, .*{engine.run.journal}"):
        JournalFeed(engine.run.journal).resume(other)


def test_a_journal_shorter_than_what_was_read_is_refused(engine: EngineDouble) -> None:
    feed = JournalFeed(engine.run.journal)
    feed.next(EVERYTHING)
    engine.run.journal.write_bytes(engine.run.journal.read_bytes()[:-1])
    with pytest.raises(JournalReplaced, match="ends before record 7"):
        feed.remaining_bytes()


def test_skipping_to_the_end_leaves_only_later_records(engine: EngineDouble) -> None:
    feed = JournalFeed(engine.run.journal)
    feed.skip_to_end()
    assert (feed.last_seq, feed.remaining_bytes()) == (7, 0)
    engine.train(1)
    assert seqs(feed) == [8]


def test_a_missing_journal_is_empty(tmp_path: Path) -> None:
    feed = JournalFeed(tmp_path / "journal.log")
    assert (feed.size_bytes(), feed.remaining_bytes(), seqs(feed)) == (0, 0, [])


def test_a_right_offset_hint_spares_the_scan(
    engine: EngineDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = JournalFeed(engine.run.journal)
    batch = feed.next(EVERYTHING)
    assert batch is not None
    engine.train(1)

    def scan(*_: object) -> bool:
        raise AssertionError("the journal is read from its beginning")

    monkeypatch.setattr(JournalFeed, "_found_by_scan", scan)
    resumed = JournalFeed(engine.run.journal)
    resumed.resume(position(engine, 7, batch.offset))
    assert seqs(resumed) == [8]
