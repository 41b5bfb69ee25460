"""What is removed from the folder of a live run comes back, and nothing is written into nothing."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec
import pytest

from fttui.engine.protocol.commands import Pause
from fttui.engine.run.control_log import ControlEntry, ControlReader, ControlWriter
from fttui.engine.run.folder.folder_keeper import FolderKeeper, sweep_temporary
from fttui.engine.run.journal import FrameReader, FrameWriter, JournalLocked, read_past_damage
from fttui.engine.run.processes.marks import EngineMark, ProcessMark, read_engine, write_mark
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.run.run_index import summarize
from fttui.engine.train.control.run_end import accepted_since
from fttui.engine.train.journal_writer import JournalWriter
from tests.support.engine_double import make_run, step_event


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    made = make_run(tmp_path)
    me = ProcessMark.current()
    write_mark(made.engine, EngineMark(pid=me.pid, started=me.started, identity=me.identity))
    return made


def entry(seq: int) -> ControlEntry:
    return ControlEntry(seq=seq, time=1.0, id=f"c{seq}", command=Pause(), issuer="ann")


@pytest.mark.parametrize("name", ["run.json", "config.yaml", "config.source.yaml", "engine.json"])
def test_a_removed_file_is_written_again(run: RunDirectory, name: str) -> None:
    keeper = FolderKeeper(run)
    before = (run.path / name).read_bytes()
    (run.path / name).unlink()
    report = keeper.restore_missing()
    assert report.put_back == [name]
    assert not report.made_again
    assert (run.path / name).read_bytes() == before
    assert keeper.restore_missing().put_back == []


def test_a_removed_folder_is_made_again_with_all_that_makes_it_a_run(run: RunDirectory) -> None:
    keeper = FolderKeeper(run)
    shutil.rmtree(run.path)
    report = keeper.restore_missing()
    assert report.made_again
    assert {"run.json", "config.yaml", "engine.json", "checkpoints/"} <= set(report.put_back)
    assert summarize(run).name == "double"
    engine = read_engine(run)
    assert engine is not None, "the mark names the new folder"
    assert engine.alive


def test_a_folder_that_took_the_place_of_a_removed_one_becomes_the_run(run: RunDirectory) -> None:
    keeper = FolderKeeper(run)
    shutil.rmtree(run.path)
    run.path.mkdir()
    report = keeper.restore_missing()
    assert report.made_again
    assert {"run.json", "config.yaml", "engine.json", "checkpoints/"} <= set(report.put_back)
    assert keeper.restore_missing().put_back == []


def test_a_folder_in_place_of_a_moved_one_is_left_alone(run: RunDirectory) -> None:
    keeper = FolderKeeper(run)
    moved = run.path.with_name("moved")
    run.path.rename(moved)
    run.path.mkdir()
    assert keeper.restore_missing().moved_to == str(moved)
    assert list(run.path.iterdir()) == []


def test_a_mark_that_was_overwritten_is_not_reported_as_restored(run: RunDirectory) -> None:
    keeper = FolderKeeper(run)
    run.engine.write_bytes(b"nonsense \xff")
    run.engine.unlink()
    assert keeper.restore_missing().put_back == []


def test_a_temporary_file_of_an_impossible_process_is_swept(run: RunDirectory) -> None:
    left = run.path / f".run.json.{10**30}.tmp"
    left.write_bytes(b"half")
    sweep_temporary(run)
    assert not left.exists()


def test_a_moved_folder_is_not_made_a_second_time(run: RunDirectory) -> None:
    keeper = FolderKeeper(run)
    moved = run.path.with_name("moved")
    run.path.rename(moved)
    assert keeper.restore_missing().moved_to == str(moved)
    assert not run.path.exists()
    moved.rename(run.path)
    assert keeper.restore_missing().moved_to == ""


def test_removed_checkpoints_are_reported(run: RunDirectory) -> None:
    keeper = FolderKeeper(run)
    shutil.rmtree(run.checkpoints)
    assert keeper.restore_missing().made_again
    assert run.checkpoints.is_dir()


def test_a_removed_journal_is_written_again_whole(tmp_path: Path) -> None:
    path, lock = tmp_path / "j.log", tmp_path / "j.lock"
    writer = FrameWriter(path, lock)
    writer.append(b"one", b"two")
    path.unlink()
    assert writer.keep_in_place()
    writer.append(b"three")
    writer.sync()
    assert list(FrameReader(path)) == [b"one", b"two", b"three"]
    assert not writer.keep_in_place()
    with pytest.raises(JournalLocked):
        _in_another_process(path, lock)


def test_a_journal_larger_than_one_read_is_written_again_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, real = tmp_path / "j.log", os.pread
    writer = FrameWriter(path, tmp_path / "j.lock")
    writer.append(b"one", b"two", b"three")
    path.unlink()
    with monkeypatch.context() as patch:
        # The kernel reads at most 2 GiB at once.
        patch.setattr(os, "pread", lambda fd, size, at: real(fd, min(size, 7), at))
        assert writer.keep_in_place()
    assert list(FrameReader(path)) == [b"one", b"two", b"three"]


@pytest.mark.parametrize("kept", [0, 3, 20])
@pytest.mark.parametrize("first_look", [True, False])
def test_a_truncated_journal_goes_on_where_its_readers_are(
    tmp_path: Path, kept: int, first_look: bool, caplog: pytest.LogCaptureFixture
) -> None:
    path, lock = tmp_path / "j.log", tmp_path / "j.lock"
    writer, reader = FrameWriter(path, lock), FrameReader(path)
    writer.append(b"one", b"two")
    assert len(reader.read()) == 2
    os.truncate(path, kept)
    if first_look:
        assert not writer.keep_in_place()
    writer.append(b"three")
    assert [payload for _, payload in reader.read()] == [b"three"]
    assert caplog.text.count("was truncated") == 1
    writer.close()
    whole = FrameReader(path)
    before = list(whole)
    found = [*before, *read_past_damage(path, whole.offset)]
    assert found[-1] == b"three"
    assert [*before, *FrameWriter(path, lock).cut_off][-1] == b"three"


def test_a_file_in_place_of_the_journal_is_kept_under_another_name(tmp_path: Path) -> None:
    path = tmp_path / "j.log"
    writer = FrameWriter(path, tmp_path / "j.lock")
    writer.append(b"one")
    path.unlink()
    path.write_text("mine")
    assert writer.keep_in_place()
    assert list(FrameReader(path)) == [b"one"]
    (kept,) = tmp_path.glob("j.log.replaced-*")
    assert kept.read_text() == "mine"


def test_a_removed_lock_is_taken_again(tmp_path: Path) -> None:
    path, lock = tmp_path / "j.log", tmp_path / "j.lock"
    writer = FrameWriter(path, lock)
    lock.unlink()
    assert writer.keep_in_place()
    with pytest.raises(JournalLocked):
        _in_another_process(path, lock)


def _in_another_process(path: Path, lock: Path) -> None:
    """Open the journal in a process of its own: a lock does not hold against its own process."""
    import subprocess
    import sys

    code = (
        "import sys; from pathlib import Path\n"
        "from fttui.engine.run.journal import FrameWriter, JournalLocked\n"
        "try: FrameWriter(Path(sys.argv[1]), Path(sys.argv[2]))\n"
        "except JournalLocked: sys.exit(7)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path), str(lock)], check=False)
    if done.returncode == 7:
        raise JournalLocked(str(path))


@pytest.mark.parametrize(
    "victims", [["control.log"], ["control.seq"], ["control.log", "control.seq"]]
)
def test_no_accepted_command_is_lost_with_the_control_journal(
    run: RunDirectory, victims: list[str]
) -> None:
    now = [0.0]
    writer, reader = ControlWriter(run), ControlReader(run, monotonic=lambda: now[0])
    writer.append(entry(1))
    assert [e.seq for e in reader.take(reader.waiting())] == [1]
    for name in victims:
        (run.path / name).unlink()
    writer.append(entry(2))
    now[0] += 1.0
    assert [e.seq for e in reader.take(reader.waiting())] == [2]
    writer.close()
    again = ControlWriter(run)
    assert [e.seq for e in again.entries] == [1, 2]
    again.close()


def test_a_hub_without_its_journal_uses_no_number_twice(run: RunDirectory) -> None:
    writer, reader = ControlWriter(run), ControlReader(run)
    writer.append(entry(1))
    assert [e.seq for e in reader.take(reader.waiting())] == [1]
    writer.close()
    run.control.unlink()
    again = ControlWriter(run)
    again.append(entry(again.last_seq + 1))
    assert [e.seq for e in reader.take(reader.waiting())] == [2]
    again.close()


@pytest.mark.parametrize("looks", [{1, 2, 3}, {3}])
def test_a_hub_that_starts_without_any_file_of_an_earlier_one_is_obeyed(
    run: RunDirectory, looks: set[int]
) -> None:
    now = [0.0]
    writer, reader = ControlWriter(run), ControlReader(run, monotonic=lambda: now[0])
    for seq in (1, 2, 3):
        writer.append(entry(seq))
    seen = reader.waiting()
    assert [e.id for e in reader.take(seen)] == ["c1", "c2", "c3"]
    writer.close()
    run.control.unlink()
    run.doorbell.unlink()
    again = ControlWriter(run)
    taken = []
    for seq in (1, 2, 3):
        again.append(msgspec.structs.replace(entry(again.last_seq + 1), id=f"new{seq}"))
        if seq in looks:
            now[0] += 1.0
            before, seen = seen, reader.waiting()
            assert seen > before
            taken += [e.id for e in reader.take(seen)]
    assert taken == ["new1", "new2", "new3"]
    assert reader.take_all() == []
    again.close()


def test_the_end_of_a_run_answers_what_such_a_hub_accepted(run: RunDirectory) -> None:
    writer = ControlWriter(run)
    for seq in (1, 2, 3):
        writer.append(entry(seq))
    writer.close()
    run.control.unlink()
    run.doorbell.unlink()
    again = ControlWriter(run)
    again.append(entry(1))
    again.close()
    assert [e.id for e in accepted_since(run, 3)] == ["c1"]


@pytest.mark.parametrize("rung", [-1, 2**63 - 1])
def test_a_doorbell_from_elsewhere_is_not_believed(run: RunDirectory, rung: int) -> None:
    run.doorbell.write_bytes(rung.to_bytes(8, "little", signed=True))
    writer = ControlWriter(run)
    writer.append(entry(writer.last_seq + 1))
    assert ControlReader(run).waiting() == 1
    writer.close()


def test_the_engine_reports_a_removed_journal_and_loses_no_event(run: RunDirectory) -> None:
    writer = JournalWriter(run, lambda _: None, in_thread=False)
    writer.emit(step_event(1), step=1, timeline=1)
    shutil.rmtree(run.path)
    writer.turn(1e9)
    assert writer.folder_losses == 1
    writer.emit(step_event(2), step=2, timeline=1)
    writer.close()
    assert len(list(FrameReader(run.journal))) == 2
