from __future__ import annotations

from pathlib import Path

import pytest

from fttui.engine.protocol.events import RunEnded
from fttui.engine.protocol.states import RunState
from fttui.engine.run.processes.heartbeat import HubStatus, beat_from_folder, build_beat
from fttui.engine.run.processes.marks import EngineMark, ProcessMark, write_mark
from fttui.engine.run.run_status import EngineStatus
from tests.support.engine_double import EngineDouble, make_run


@pytest.fixture(autouse=True)
def disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fttui.engine.run.processes.heartbeat.free_bytes", lambda _: 123)


def test_a_heartbeat_from_the_folder_and_one_of_a_hub_say_the_same_of_the_run(
    tmp_path: Path,
) -> None:
    double = EngineDouble(make_run(tmp_path))
    double.start()
    beat = beat_from_folder(double.run, 2, now=5.0)
    me = ProcessMark.current()
    assert (beat.engine_alive, beat.engine_pid) == (True, me.pid)
    assert (beat.state, beat.last_seq, beat.time) == (RunState.RUNNING, 2, 5.0)
    assert (beat.disk_free_bytes, beat.engine_log_tail) == (123, [])
    assert (beat.controller, beat.controller_viewer) == (None, None)
    assert (beat.viewers, beat.generation) == (0, 0)
    engine = EngineStatus(me.pid, 1, me.started, alive=True)
    assert build_beat(double.run, RunState.RUNNING, engine, 2, now=5.0) == beat


def test_a_hub_adds_who_controls_and_watches(tmp_path: Path) -> None:
    hub = HubStatus(controller="ann", controller_viewer="v1", viewers=2, generation=4)
    run, engine = make_run(tmp_path), EngineStatus()
    beat = build_beat(run, RunState.STARTING, engine, 0, now=0.0, hub=hub)
    found = beat.controller, beat.controller_viewer, beat.viewers, beat.generation
    assert found == ("ann", "v1", 2, 4)
    assert (beat.engine_alive, beat.engine_pid) == (False, None)


def test_only_a_lost_run_brings_the_end_of_its_log(tmp_path: Path) -> None:
    double = EngineDouble(make_run(tmp_path))
    double.start()
    double.run.engine_log.write_text("".join(f"line {n}\n" for n in range(30)))
    me = ProcessMark.current()
    write_mark(double.run.engine, EngineMark(pid=me.pid, started=me.started - 100))
    beat = beat_from_folder(double.run, double.seq, now=5.0)
    assert beat.state is RunState.LOST
    assert beat.engine_log_tail == [f"line {n}" for n in range(10, 30)]
    double.emit(RunEnded(state=RunState.FAILED, exit_code=8))
    assert beat_from_folder(double.run, double.seq, now=5.0).engine_log_tail == []
