"""The journal writer goes on, whatever it finds in a journal and whatever it is given to write."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fttui.engine.protocol.codec import decode_record, encode
from fttui.engine.protocol.events import AnyEvent, LogEmitted, Record
from fttui.engine.run.journal import FrameReader, FrameWriter
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.train.journal_writer import JournalWriter
from tests.support.engine_double import make_run, step_event
from tests.support.waiting import until


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return make_run(tmp_path)


def record(seq: int) -> bytes:
    return encode(Record(seq=seq, time=1.0, step=seq, timeline=1, event=step_event(seq)))


def journaled(run: RunDirectory) -> list[Record]:
    found = [decode_record(payload) for payload in FrameReader(run.journal)]
    return [record for record in found if record is not None]


def texts(run: RunDirectory) -> list[str]:
    return [r.event.text for r in journaled(run) if isinstance(r.event, LogEmitted)]


def with_damage(run: RunDirectory, *payloads: bytes) -> None:
    """Write a journal whose first record is damaged."""
    writer = FrameWriter(run.journal, run.journal_lock)
    start = writer.append(payloads[0])
    writer.append(*payloads[1:])
    writer.close()
    with open(run.journal, "r+b") as file:
        file.seek(start + 9)
        file.write(b"\xff\xff")


def test_records_behind_damage_are_restored_with_a_stand_in(run: RunDirectory) -> None:
    with_damage(run, record(1), record(2), record(3))
    JournalWriter(run, lambda _: None, in_thread=False).close()
    assert [r.seq for r in journaled(run)] == [1, 2, 3]
    assert "was damaged" in texts(run)[0]


@pytest.mark.parametrize("seq", [2**40, 2**53 - 1, 2**64 - 1])
def test_an_impossible_number_behind_damage_fills_no_memory(run: RunDirectory, seq: int) -> None:
    with_damage(run, record(1), record(2), record(seq))
    writer = JournalWriter(run, lambda _: None, in_thread=False)
    writer.emit(step_event(3), step=3, timeline=1)
    writer.close()
    seqs = [r.seq for r in journaled(run)]
    assert seqs == list(range(1, len(seqs) + 1))
    if seq < 2**53:
        assert any("impossible numbers" in text for text in texts(run))


@pytest.mark.parametrize("last", [b"no record", record(2**64 - 1)])
def test_numbers_go_on_after_a_frame_that_is_no_record(run: RunDirectory, last: bytes) -> None:
    frames = FrameWriter(run.journal, run.journal_lock)
    frames.append(record(1), last)
    frames.close()
    writer = JournalWriter(run, lambda _: None, in_thread=False)
    writer.emit(step_event(2), step=2, timeline=1)
    writer.close()
    newest = decode_record(list(FrameReader(run.journal))[-1])
    assert newest is not None
    assert newest.seq == 2


def test_a_text_with_half_a_surrogate_pair_is_journaled_with_an_escape(run: RunDirectory) -> None:
    writer = JournalWriter(run, lambda _: None, in_thread=False)
    writer.emit(LogEmitted(level="error", text="no file caf\udce9"), step=1, timeline=1)
    writer.close()
    assert texts(run) == ["no file caf\\udce9"]


def test_an_event_that_cannot_be_encoded_loses_no_other(run: RunDirectory) -> None:
    writer = JournalWriter(run, lambda _: None, in_thread=False)
    impossible: AnyEvent = LogEmitted(level="error", text=object())  # type: ignore[arg-type]
    writer._in_thread = True  # as a batch
    for event in (step_event(1), impossible, step_event(2)):
        writer.emit(event, step=1, timeline=1)
    writer._in_thread = False
    writer.close()
    assert [r.seq for r in journaled(run)] == [1, 2, 3]
    assert "an event (LogEmitted) cannot be recorded" in texts(run)[0]


def test_the_thread_goes_on_after_an_unexpected_error(run: RunDirectory) -> None:
    tried: list[int] = []

    def broken(_: RunDirectory) -> None:
        tried.append(1)
        raise ValueError("no hub")

    writer = JournalWriter(run, broken)
    until(lambda: tried)
    writer.emit(step_event(1), step=1, timeline=1)
    until(lambda: [r.seq for r in journaled(run)] == [1])
    assert writer._thread.is_alive()
    writer.close()


def test_a_late_event_is_not_written_into_another_file(run: RunDirectory, tmp_path: Path) -> None:
    writer = JournalWriter(run, lambda _: None, in_thread=False)
    writer.close()
    flags = os.O_RDWR | os.O_CREAT
    files = [os.open(tmp_path / f"other-{n}", flags) for n in range(20)]  # take its descriptors
    writer.emit(step_event(1), step=1, timeline=1)
    writer.close()
    assert [os.fstat(file).st_size for file in files] == [0] * len(files)
    for file in files:
        os.close(file)


def test_a_reserve_that_was_removed_is_made_again(run: RunDirectory) -> None:
    writer = JournalWriter(run, lambda _: None, in_thread=False)
    (run.path / "journal.reserve").unlink()
    writer.turn(1e9)
    assert (run.path / "journal.reserve").stat().st_size > 0
    writer.close()
    assert not (run.path / "journal.reserve").exists()


def test_a_reserve_for_which_there_is_no_room_is_tried_again_and_told_once(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        writer = JournalWriter(run, lambda _: None, in_thread=False)
        for second in range(1, 4):
            writer.turn(1e9 + 2.0 * second)
    assert caplog.text.count("cannot be reserved") == 1
    writer.turn(2e9)
    assert (run.path / "journal.reserve").stat().st_size > 0
    writer.close()
