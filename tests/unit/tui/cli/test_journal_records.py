"""Commands that print a journal leave out frames that are not records, and say so."""

from __future__ import annotations

from pathlib import Path

from fttui.engine.protocol.codec import encode
from fttui.engine.protocol.events import LogEmitted, Record
from fttui.engine.run.journal import FrameWriter
from fttui.tui.cli.execute import _new_lines
from fttui.tui.cli.headless import HeadlessLog, JournalRecords
from fttui.tui.cli.temporary_runs.probe import _newest
from tests.support.journaled import new_run


def record(seq: int, text: str) -> bytes:
    event = LogEmitted(level="warning", text=text)
    return encode(Record(seq=seq, time=0.0, step=0, timeline=1, event=event))


ODD = (b"\xc1", b"no record", record(9, "half")[:-4])


def test_a_frame_that_is_no_record_is_left_out_and_told_once(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    writer = FrameWriter(run.journal, tmp_path / "lock")
    writer.append(record(1, "first"), *ODD, record(2, "last"))
    journal, log = JournalRecords(run.journal), HeadlessLog()
    *warnings, told = _new_lines(journal, log)
    assert warnings == ["warning: first", "warning: last"]
    assert f"{len(ODD)} frames that are not records" in told
    assert not list(_new_lines(journal, log))
    writer.append(ODD[0], record(3, "more"))
    assert [line.split(";")[0] for line in _new_lines(journal, log)] == [
        "warning: more",
        "the journal has 1 frame that is not a record",
    ]
    newest = _newest(run, LogEmitted)
    assert newest is not None
    assert newest.text == "more"
