from __future__ import annotations

import os
from pathlib import Path

from fttui.engine.protocol.codec import encode
from fttui.engine.protocol.events import Record
from fttui.engine.run.journal import FrameWriter, frame
from fttui.engine.run.records.record_feed import RecordFeed
from tests.support.journaled import new_run, records, write_journal


def seqs(found: list[Record]) -> list[int]:
    return [record.seq for record in found]


def test_records_come_once_as_the_journal_grows(tmp_path: Path) -> None:
    run, feed, every = new_run(tmp_path), None, records()
    feed = RecordFeed(run)
    assert feed.read() == [], "there is no journal yet"
    write_journal(run, every[:5])
    assert seqs(feed.read()) == [1, 2, 3, 4, 5]
    assert feed.read() == []
    write_journal(run, every[5:])
    assert seqs(feed.read()) == [record.seq for record in every[5:]]


def test_a_journal_that_was_written_again_repeats_nothing(tmp_path: Path) -> None:
    run, every = new_run(tmp_path), records()
    write_journal(run, every[:5])
    feed = RecordFeed(run)
    feed.read()
    run.journal.unlink()
    write_journal(run, every[:3])
    assert feed.read() == []
    write_journal(run, every[3:7])
    assert seqs(feed.read()) == [6, 7]


def test_what_cannot_be_read_is_counted_and_the_rest_behind_damage_is_found(
    tmp_path: Path,
) -> None:
    run, every = new_run(tmp_path), records()
    write_journal(run, every[:3])
    size = run.journal.stat().st_size
    writer = FrameWriter(run.journal, run.journal_lock)
    writer.append(encode(every[3]), b"no record", encode(every[4]))
    writer.close()
    with open(run.journal, "r+b") as file:
        file.seek(size + 8)
        file.write(b"\xff" * 4)
    feed = RecordFeed(run)
    assert seqs(feed.read()) == [1, 2, 3]
    assert seqs(feed.read_rest()) == [5]
    assert feed.unreadable == 1
    assert feed.damaged_bytes == len(frame(encode(every[3])))


def test_an_unknown_kind_is_counted(tmp_path: Path) -> None:
    run, one = new_run(tmp_path), records()[1]
    write_journal(run, [one])
    strange = encode(one).replace(b"StepFinished", b"StepFlnished")
    writer = FrameWriter(run.journal, run.journal_lock)
    writer.append(strange)
    writer.close()
    feed = RecordFeed(run)
    assert seqs(feed.read()) == [2]
    assert feed.unknown == 1
    assert os.path.exists(run.journal)
