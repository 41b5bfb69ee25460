from __future__ import annotations

import asyncio
from pathlib import Path

import fttui.tui.connection.history_reader as history_reader
from fttui.engine.run.journal import MAGIC, frame
from fttui.engine.run.run_dir import RunDirectory
from fttui.tui.view_model.connection_port import Delivery, HistoryArrived


def test_a_journal_without_any_record_is_counted_as_unknown(tmp_path: Path, monkeypatch) -> None:
    for name in ("LONG_BYTES", "_EXACT_BYTES", "_READ_BYTES"):
        monkeypatch.setattr(history_reader, name, 100)
    run = RunDirectory(tmp_path)
    run.journal.write_bytes(MAGIC + 50 * frame(b"no record at all"))
    found: list[Delivery] = []
    read = asyncio.run(history_reader.read_history(run, found.append))
    assert (read.seq, read.offset) == (0, run.journal.stat().st_size)
    assert sum(one.batch.unknown for one in found if isinstance(one, HistoryArrived)) == 50
