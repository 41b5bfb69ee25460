"""Journals that other processes decode: the same records in the same order, whatever happens."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import numpy as np
import pytest

from fttui.engine.protocol.codec import encode
from fttui.engine.protocol.events import LogEmitted, Record
from fttui.engine.run.journal import MAGIC, frame
from fttui.engine.run.run_dir import RunDirectory
from fttui.tui.connection import history_reader
from fttui.tui.connection.history import workers
from fttui.tui.connection.history.parts import HistoryPart, read_part
from fttui.tui.view_model.connection_port import Delivery, HistoryArrived
from fttui.tui.view_model.reducer import apply_batch
from fttui.tui.view_model.run_view import RunView
from fttui.tui.view_model.step_batch import RecordBatch, decode_batch
from tests.support.journaled import step

PART = 20_000
STEPS = 400


def journal(tmp_path: Path) -> tuple[RunDirectory, list[bytes]]:
    """A journal of steps with a line of the log among every 50 of them."""
    events = [
        LogEmitted(level="info", text=f"line {n}") if n % 50 == 7 else step(1.0 + n % 13)
        for n in range(STEPS)
    ]
    payloads = [
        encode(Record(seq=n, time=1e9 + n, step=n, timeline=1, event=event))
        for n, event in enumerate(events, 1)
    ]
    run = RunDirectory(tmp_path)
    run.journal.write_bytes(MAGIC + b"".join(map(frame, payloads)))
    return run, payloads


def view_of(batches: list[RecordBatch]) -> RunView:
    view = RunView()
    for batch in batches:
        view = apply_batch(view, batch)
    return view


def require_same(found: RunView, wanted: RunView) -> None:
    """The same points; averages to rounding, because they depend on how batches are divided."""
    assert found.branch.curves.keys() == wanted.branch.curves.keys()
    for name, series in wanted.branch.curves.items():
        other = found.branch.curves[name]
        assert other.xs.tolist() == series.xs.tolist()
        np.testing.assert_allclose(other.ys, series.ys, rtol=1e-9)


def parts_of(run: RunDirectory, width: int = 1) -> list[HistoryPart]:
    size = run.journal.stat().st_size
    starts = range(0, size, PART)
    return [p for at in starts for p in read_part(run.journal, at, min(size, at + PART), width)]


def test_parts_meet_and_have_every_record(tmp_path: Path) -> None:
    run, payloads = journal(tmp_path)
    parts = parts_of(run)
    assert len(parts) > 5
    assert [part.begin for part in parts] == [0, *(part.offset for part in parts[:-1])]
    assert parts[-1].offset == run.journal.stat().st_size
    assert parts[-1].seq == STEPS
    wanted = view_of([decode_batch(payloads)])
    found = view_of([part.batch for part in parts])
    require_same(found, wanted)
    assert (found.steps_seen, found.tokens_seen) == (wanted.steps_seen, wanted.tokens_seen)
    assert [line.text for line in found.log] == [line.text for line in wanted.log]


def test_thinned_parts_keep_extremes_and_averages(tmp_path: Path) -> None:
    run, payloads = journal(tmp_path)
    wanted, found = view_of([decode_batch(payloads)]), view_of([p.batch for p in parts_of(run, 16)])
    assert len(found.branch.curves["loss"]) < len(wanted.branch.curves["loss"]) / 3
    for name in ("loss", "loss.ce"):
        ours, all_ = found.branch.curves[name].ys, wanted.branch.curves[name].ys
        assert (ours.min(), ours.max()) == (all_.min(), all_.max())
    ours, all_ = (view.branch.curves["loss~0.9"].ys for view in (found, wanted))
    np.testing.assert_allclose(ours, all_, rtol=1e-9)


def test_a_part_ends_at_damage(tmp_path: Path) -> None:
    run, _ = journal(tmp_path)
    data = bytearray(run.journal.read_bytes())
    data[PART // 2] ^= 1
    run.journal.write_bytes(data)
    (first,) = read_part(run.journal, 0, PART, 1)
    assert first.offset <= PART // 2
    (second,) = read_part(run.journal, PART, 2 * PART, 1)
    assert PART <= second.begin < PART + 1000


def read(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> tuple[RunView, int]:
    """Read a journal as a long one that processes decode; return the view and the offset."""
    for module, name, value in (
        (history_reader, "LONG_BYTES", 1), (history_reader, "_EXACT_BYTES", 3_000),
        (history_reader, "_READ_BYTES", 8_000),
        (workers, "WORTH_BYTES", 1), (workers, "PART_BYTES", PART), (workers, "_MOST", 2),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)
    found: list[Delivery] = []
    position = asyncio.run(history_reader.read_history(run, found.append))
    return view_of([d.batch for d in found if isinstance(d, HistoryArrived)]), position.offset


def test_processes_read_what_one_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, payloads = journal(tmp_path)
    begun: list[int] = []
    part_in_order = workers._in_order

    def counted(*arguments: object) -> object:
        begun.append(1)
        return part_in_order(*arguments)  # type: ignore[arg-type]  # passed on as they are

    monkeypatch.setattr(workers, "_in_order", counted)
    found, offset = read(run, monkeypatch)
    assert begun == [1]
    assert offset == run.journal.stat().st_size
    require_same(found, view_of([decode_batch(payloads)]))


def test_if_processes_cannot_read_the_viewer_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, payloads = journal(tmp_path)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    found, offset = read(run, monkeypatch)
    assert offset == run.journal.stat().st_size
    require_same(found, view_of([decode_batch(payloads)]))
