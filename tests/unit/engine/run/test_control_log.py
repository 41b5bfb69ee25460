from __future__ import annotations

import os
from pathlib import Path

import pytest

from fttui.engine.protocol.commands import Pause, ScaleLr
from fttui.engine.run.control_log import ControlEntry, ControlReader, ControlWriter
from fttui.engine.run.run_dir import RunDirectory


def entry(seq: int, *, rejected: str | None = None) -> ControlEntry:
    command = ScaleLr(factor=float(seq)) if seq % 2 else Pause()
    return ControlEntry(
        seq=seq, time=1.0, id=f"c{seq}", command=command, issuer="ann", rejected=rejected
    )


def test_the_engine_takes_each_entry_once_and_no_rejected_one(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    writer, reader = ControlWriter(run), ControlReader(run)
    assert reader.waiting() == 0
    writer.append(entry(1))
    writer.append(entry(2, rejected="not now"))
    writer.append(entry(3))
    assert reader.waiting() == 3
    assert [e.seq for e in reader.take(2)] == [1]
    assert reader.seen_seq == 2
    assert [e.seq for e in reader.take(3)] == [3]
    assert reader.take(3) == []
    writer.close()


def test_entries_and_the_bell_survive_a_restart_of_the_hub(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    first = ControlWriter(run)
    first.append(entry(1))
    first.close()
    run.doorbell.unlink()
    second = ControlWriter(run)
    assert second.entries == [entry(1)]
    assert ControlReader(run).waiting() == 1
    second.append(entry(second.last_seq + 1))
    assert [e.seq for e in ControlReader(run).take(2)] == [1, 2]
    second.close()


def test_an_entry_that_cannot_be_synced_never_reaches_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDirectory(tmp_path)
    writer, reader = ControlWriter(run), ControlReader(run)
    writer.append(entry(1))

    def broken(_descriptor: int) -> None:
        # A reader that looks at this very moment must not keep the entry.
        assert [e.seq for e in reader.take(reader.waiting())] == [1]
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", broken)
        with pytest.raises(OSError, match="Input/output"):
            writer.append(entry(2))
    assert reader.waiting() == 1
    assert writer.last_seq == 1
    replacement = entry(2, rejected=None)
    writer.append(replacement)
    assert reader.take(2) == [replacement]
    writer.close()
    assert [e.seq for e in ControlWriter(run).entries] == [1, 2]


def test_closed_readers_and_writers_leave_no_open_file(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    for seq in range(1, 4):
        writer = ControlWriter(run)
        writer.append(entry(seq))
        with ControlReader(run) as reader:
            assert reader.take(reader.waiting())
        writer.close()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("content", [b"", b"\x01", b"\xff" * 8, b"\0" * 8, b"\x09" + bytes(7)])
def test_a_doorbell_that_is_overwritten_ends_nobody_and_hides_no_command(
    tmp_path: Path, content: bytes
) -> None:
    run = RunDirectory(tmp_path)
    writer, reader = ControlWriter(run), ControlReader(run)
    writer.append(entry(1))
    assert [e.seq for e in reader.take(reader.waiting())] == [1]
    os.truncate(run.doorbell, 0)
    run.doorbell.write_bytes(content)
    assert reader.take(reader.waiting()) == []
    writer.keep_in_place()
    assert reader.take(seen := reader.waiting()) == []
    writer.append(entry(2))
    assert reader.waiting() > seen
    assert [e.seq for e in reader.take(reader.waiting())] == [2]
    writer.close()


def test_a_command_that_cannot_be_announced_is_announced_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDirectory(tmp_path)
    writer, reader = ControlWriter(run), ControlReader(run)

    write = os.pwrite

    def full(descriptor: int, data: bytes, offset: int) -> int:
        if len(data) == 8:  # the doorbell
            raise OSError(28, "No space left on device")
        return write(descriptor, data, offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        writer.append(entry(1))
    assert writer.entries == [entry(1)]
    assert reader.waiting() == 0
    writer.keep_in_place()
    assert [e.seq for e in reader.take(reader.waiting())] == [1]
    writer.close()


@pytest.mark.parametrize("rung", [-1, 2**62])
def test_an_engine_that_starts_before_the_hub_believes_no_doorbell_from_elsewhere(
    tmp_path: Path, rung: int
) -> None:
    run = RunDirectory(tmp_path)
    run.doorbell.write_bytes(rung.to_bytes(8, "little", signed=True))
    with ControlReader(run) as reader:
        assert reader.waiting() == 0, "else every later command counts as an old one"
