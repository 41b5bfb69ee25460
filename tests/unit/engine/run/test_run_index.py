from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fttui.engine.errors import FttuiError, NoSuchRun
from fttui.engine.protocol.events import LogEmitted, RunEnded
from fttui.engine.protocol.states import RunState
from fttui.engine.run import run_index
from fttui.engine.run.journal import FrameWriter, frame
from fttui.engine.run.processes.marks import (
    UNMARKED_LONG_S,
    UNMARKED_S,
    Endpoint,
    EngineMark,
    ProcessMark,
    read_endpoint,
    read_engine,
    write_mark,
)
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.run.run_index import (
    RunSummary,
    _nearest,
    choose_run,
    find_run,
    list_runs,
    read_ends,
    summarize,
)
from fttui.tui.cli.attach import require_here
from fttui.tui.cli.control import require_engine
from fttui.tui.connection.engine_process import checkpoint_to_resume
from fttui.tui.connection.factory import open_session
from fttui.tui.connection.offline import OfflineSession
from tests.support.engine_double import EngineDouble, make_run


def test_a_fresh_run_is_starting(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    summary = summarize(run)
    assert (summary.state, summary.step, summary.name) == (RunState.STARTING, 0, "double")


def test_a_run_whose_creator_ended_without_an_engine_did_not_start(tmp_path: Path) -> None:
    imports = (
        "import sys; from pathlib import Path; from tests.support.engine_double import make_run"
    )
    words = f"{imports}; print(make_run(Path(sys.argv[1])).path)"
    done = subprocess.run(
        [sys.executable, "-c", words, str(tmp_path)], capture_output=True, text=True, check=True
    )
    run = RunDirectory(Path(done.stdout.strip()))
    summary = summarize(run)
    assert (summary.state, summary.state_text) == (RunState.LOST, "did not start")
    assert summary.error == f"start it with: fttui run --resume {run.id}"
    run.engine_log.touch()  # an engine that was spawned now marks the run in a moment
    assert summarize(run).state is RunState.STARTING
    old = time.time() - UNMARKED_S - 1
    os.utime(run.engine_log, (old, old))
    assert summarize(run).never_started


@pytest.mark.parametrize(("age_s", "started"), [(60.0, True), (UNMARKED_LONG_S + 60, False)])
def test_an_old_folder_without_a_creator_did_not_start_either(
    tmp_path: Path, age_s: float, started: bool
) -> None:
    run = make_run(tmp_path)
    created = time.time() - age_s
    identity = msgspec.structs.replace(run.identity(), creator=None, created=created)
    run.write(run.identity_file, msgspec.json.encode(identity))
    assert summarize(run).never_started is not started


def test_a_live_run_is_what_it_said_last(tmp_path: Path) -> None:
    engine = EngineDouble(make_run(tmp_path), total_steps=7)
    engine.start()
    engine.train(3)
    engine.go(RunState.PAUSED)
    summary = summarize(engine.run)
    assert (summary.state, summary.step, summary.total_steps) == (RunState.PAUSED, 3, 7)
    assert summary.loss is not None
    assert summary.loss != summary.loss  # step 3 of the double is NaN, and stays so


def test_a_long_run_is_summarized_from_its_ends(tmp_path: Path) -> None:
    engine = EngineDouble(make_run(tmp_path))
    engine.start()
    engine.train(5000)
    assert engine.run.journal.stat().st_size > 2 * 256 * 1024
    records = read_ends(engine.run.journal)
    assert records[0].seq == 1
    assert records[-1].seq == engine.seq
    assert len(records) < engine.seq
    assert summarize(engine.run).state is RunState.RUNNING


def test_only_steps_since_the_unread_middle_mean_running(tmp_path: Path) -> None:
    engine = EngineDouble(make_run(tmp_path))
    engine.start()
    engine.go(RunState.EVALUATING)  # read in the head; the way back lies in the unread middle
    engine.train(1000)
    engine.go(RunState.RUNNING)
    engine.train(4000)
    assert summarize(engine.run).state is RunState.RUNNING


def test_an_engine_gone_without_a_word_is_lost_and_with_one_is_not(tmp_path: Path) -> None:
    engine = EngineDouble(make_run(tmp_path))
    engine.start()
    me = ProcessMark.current()
    write_mark(engine.run.engine, EngineMark(pid=me.pid, started=me.started - 100))
    assert summarize(engine.run).state is RunState.LOST
    engine.emit(RunEnded(state=RunState.FAILED, exit_code=8, error="no memory"))
    summary = summarize(engine.run)
    assert (summary.state, summary.error) == (RunState.FAILED, "no memory")


def test_an_engine_started_after_the_end_is_starting_again(tmp_path: Path) -> None:
    engine = EngineDouble(make_run(tmp_path))
    engine.start()
    engine.emit(RunEnded(state=RunState.STOPPED, exit_code=0))
    assert summarize(engine.run).state is RunState.STOPPED  # its process is still on its way out
    me = ProcessMark.current()
    late = EngineMark(pid=me.pid, started=me.started + 0.9, incarnation=2)
    engine.emit(RunEnded(state=RunState.STOPPED, exit_code=0), at=me.started + 0.5)
    write_mark(engine.run.engine, late)
    assert summarize(engine.run).state is RunState.STARTING


def test_after_a_change_of_the_clock_the_engine_is_the_same(tmp_path: Path) -> None:
    """The start times of the marks and of the processes differ by the change."""
    engine = EngineDouble(make_run(tmp_path))
    engine.start()
    me = ProcessMark.current()
    for step_s in (-86_400.0, -1.0, 2.0, 86_400.0):
        mark = EngineMark(pid=me.pid, started=me.started + step_s, identity=me.identity)
        write_mark(engine.run.engine, mark)
        assert summarize(engine.run).state is RunState.RUNNING
    engine.emit(RunEnded(state=RunState.STOPPED, exit_code=0), at=me.started + 86_400.0)
    again = EngineMark(
        pid=me.pid, started=me.started, identity=me.identity, incarnation=2, after_seq=engine.seq
    )
    write_mark(engine.run.engine, again)
    assert summarize(engine.run).state is RunState.STARTING, "it ended in the future, before"


def test_a_run_of_another_machine_is_named_and_never_lost(tmp_path: Path) -> None:
    engine = EngineDouble(make_run(tmp_path))
    engine.start()
    engine.go(RunState.RUNNING)
    me = ProcessMark.current()
    assert me.identity is not None
    there = msgspec.structs.replace(me.identity, host="gpu-box", boot="x")
    write_mark(engine.run.engine, EngineMark(pid=2**22 + 1, started=0.0, identity=there))
    summary = summarize(engine.run)
    assert (summary.state, summary.engine_host) == (RunState.RUNNING, "gpu-box")
    for forbidden in (
        lambda: checkpoint_to_resume(engine.run, None),
        lambda: require_here(engine.run),
        lambda: require_engine(engine.run),
    ):
        with pytest.raises(FttuiError, match="was started on gpu-box"):
            forbidden()
    assert isinstance(open_session(engine.run), OfflineSession)
    engine.emit(RunEnded(state=RunState.FINISHED, exit_code=0))
    summary = summarize(engine.run)
    assert (summary.state, summary.engine_host) == (RunState.FINISHED, "")


def test_frames_that_are_no_records_are_passed_over(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    writer = FrameWriter(run.journal, run.journal_lock)
    writer.append(b"\x00not a record")
    writer.close()
    engine = EngineDouble(run)
    engine.emit(LogEmitted(level="info", text="hi"))
    assert [record.seq for record in read_ends(run.journal)] == [engine.seq]


def test_runs_are_found_by_name_prefix_and_folder(tmp_path: Path) -> None:
    apple, pear = make_run(tmp_path, name="apple"), make_run(tmp_path, name="pear")
    assert find_run(tmp_path, apple.id) == apple
    assert find_run(tmp_path, "pea") == pear
    assert find_run(Path("/nowhere"), str(pear.path)) == pear
    with pytest.raises(NoSuchRun, match="plum"):
        find_run(tmp_path, "plum")
    make_run(tmp_path, name="peach")
    with pytest.raises(NoSuchRun, match="matches 2 runs"):
        find_run(tmp_path, "pea")


@pytest.mark.parametrize("typed", ["smolm2-pairs", "smollm2-pais", "smollm2-pairs-20260101-00001"])
def test_a_mistyped_name_is_answered_with_the_one_that_was_meant(
    tmp_path: Path, typed: str
) -> None:
    run = make_run(tmp_path, name="smollm2-pairs")
    make_run(tmp_path, name="llama")
    with pytest.raises(NoSuchRun, match=f"no run '{typed}' in .*; did you mean {run.id}"):
        find_run(tmp_path, typed)
    with pytest.raises(NoSuchRun, match="the newest runs: llama"):
        find_run(tmp_path, "another")


@pytest.mark.parametrize("typed", ["smollm2-pairs-20260101-000041", "smolm2-pairs-20260101"])
def test_a_run_of_another_name_is_not_meant_because_it_began_at_a_like_time(typed: str) -> None:
    ended: dict[str, Any] = {"path": "", "created": 0.0, "state": RunState.FAILED}
    names = ("llama", "smollm2-pairs")
    runs = [RunSummary(id=f"{name}-20260101-000040", name=name, **ended) for name in names]
    hint = _nearest(runs, typed)
    assert hint.startswith("did you mean smollm2-pairs-20260101-000040?")


def test_nothing_named_means_the_newest_live_one(tmp_path: Path) -> None:
    live = make_run(tmp_path, name="live")
    ended = EngineDouble(make_run(tmp_path, name="ended"))
    ended.start()
    ended.end()
    ended.run.engine.unlink()
    EngineDouble(live).start()
    assert find_run(tmp_path, None, live=True) == live
    assert [s.name for s in list_runs(tmp_path)][:1] == ["ended"]
    with pytest.raises(NoSuchRun, match="fttui run"):
        find_run(tmp_path / "empty", None)


def test_a_copy_of_a_live_run_is_nobodys(tmp_path: Path) -> None:
    """What steers the copy must not steer the run it was copied from."""
    run = make_run(tmp_path)
    EngineDouble(run).start()
    me = ProcessMark.current()
    write_mark(run.engine, EngineMark(pid=me.pid, started=me.started))
    write_mark(run.endpoint, Endpoint(pid=me.pid, started=me.started, folder="/nowhere"))
    shutil.copytree(run.path, tmp_path / "copy")
    copy = RunDirectory(tmp_path / "copy")
    assert read_engine(copy) is None
    assert read_endpoint(copy) is None
    run.path.rename(tmp_path / "moved")
    moved = read_engine(RunDirectory(tmp_path / "moved"))
    assert moved is not None
    assert moved.alive
    assert {s.id for s in list_runs(tmp_path)} == {"copy", "moved"}


def test_runs_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        make_run(tmp_path / folder).path.rename(tmp_path / folder / "same")
    found = [summarize(RunDirectory(tmp_path / folder / "same")) for folder in ("a", "b")]
    with pytest.raises(
        NoSuchRun, match=f"2 runs are called same; name the run folder: {tmp_path}/a"
    ):
        choose_run(found, "same", "here")


@pytest.mark.parametrize(("size", "tail_read"), [(64 * 1024, False), (64 * 1024 + 1, True)])
def test_the_end_of_a_journal_is_read_only_if_the_beginning_is_not_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, tail_read: bool
) -> None:
    engine = EngineDouble(make_run(tmp_path))
    engine.start()
    read: list[Path] = []

    def read_tail(path: Path) -> tuple[list[bytes], int]:
        read.append(path)
        return [], 0

    monkeypatch.setattr(run_index, "read_tail", read_tail)
    os.truncate(engine.run.journal, size)
    assert [record.seq for record in read_ends(engine.run.journal)] == list(
        range(1, engine.seq + 1)
    )
    assert bool(read) == tail_read


@pytest.mark.parametrize(
    ("runs", "live", "what"),
    [(0, False, "no run in here"), (0, True, "no run in here"), (1, True, "no live run in here")],
)
def test_without_a_run_to_choose_it_says_which_kind_there_is_none_of(
    tmp_path: Path, runs: int, live: bool, what: str
) -> None:
    found = []
    for _ in range(runs):
        engine = EngineDouble(make_run(tmp_path))
        engine.start()
        engine.emit(RunEnded(state=RunState.FINISHED, exit_code=0))
        found.append(summarize(engine.run))
    with pytest.raises(NoSuchRun, match=f"{what}; start one with: fttui run CONFIG"):
        choose_run(found, "", "here", live=live)


@pytest.mark.parametrize(("junk", "records"), [(65_535, 1), (65_536, 0)])
def test_the_end_of_a_journal_is_found_behind_64_kib_of_damage(
    tmp_path: Path, junk: int, records: int
) -> None:
    journal = tmp_path / "journal.log"
    journal.write_bytes(b"\xff" * junk + frame(b"record"))
    found, after = run_index.read_tail(journal)
    assert found == [b"record"] * records
    assert after == (journal.stat().st_size if records else 0)


@pytest.mark.parametrize("wanted", ["gpu-box:my", "ann@gpu-box:my"])
def test_a_run_on_a_host_is_refused_with_the_way_to_run_the_command_there(
    tmp_path: Path, wanted: str
) -> None:
    with pytest.raises(NoSuchRun, match=f"on another machine.* through: ssh {wanted[:-3]} "):
        find_run(tmp_path, wanted)
