from __future__ import annotations

from pathlib import Path

from fttui.engine.hub.ssh_bridge.journal_feed import JournalFeed
from fttui.engine.hub.ssh_bridge.journal_tail import JournalTail
from fttui.engine.protocol.codec import decode_record
from fttui.engine.protocol.events import LogEmitted
from fttui.engine.run.journal import frame
from tests.support.engine_double import EngineDouble, make_run


def steps(tail: JournalTail) -> list[int]:
    return [record.step for record in map(decode_record, tail.newest_steps()) if record]


def test_the_newest_steps_are_returned_once_and_at_most_ten(tmp_path: Path) -> None:
    engine = EngineDouble(make_run(tmp_path))
    tail = JournalTail(engine.run.journal)
    tail.refresh()
    assert (tail.seq, steps(tail)) == (0, [])
    engine.start()
    engine.train(12)
    tail.refresh()
    assert tail.seq == engine.seq
    assert steps(tail) == list(range(3, 13))
    assert steps(tail) == []
    engine.train(2)
    engine.emit(LogEmitted(level="info", text="hi"))
    tail.refresh()
    assert steps(tail) == [13, 14]


def test_frames_at_the_end_that_are_no_records_are_passed_over(tmp_path: Path) -> None:
    engine = EngineDouble(make_run(tmp_path))
    engine.start()
    engine.train(3)
    with engine.run.journal.open("ab") as journal:
        journal.write(frame(b"no record") + frame(b"nor this"))
    tail, feed = JournalTail(engine.run.journal), JournalFeed(engine.run.journal)
    tail.refresh()
    feed.skip_to_end()
    assert (tail.seq, steps(tail)) == (engine.seq, [1, 2, 3])
    assert (feed.last_seq, feed.remaining_bytes()) == (engine.seq, 0)


def test_a_missing_journal_has_no_records(tmp_path: Path) -> None:
    tail = JournalTail(tmp_path / "journal.log")
    tail.refresh()
    assert (tail.seq, tail.newest_steps()) == (0, [])
