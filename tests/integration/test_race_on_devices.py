"""A race on several devices with real engines: its result, lost engines, and its own death."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from fttui.engine.protocol.codec import decode_record
from fttui.engine.protocol.events import RolledBack, StateChanged, StepFinished
from fttui.engine.protocol.races.variant_step import VariantStep
from fttui.engine.protocol.states import RunState
from fttui.engine.run.journal import FrameReader
from fttui.engine.run.processes.marks import read_endpoint, read_engine
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.run.run_index import list_runs, summarize
from fttui.tui.connection.race.race_file import read_race
from fttui.tui.view_model.race.race_state import RaceState
from tests.support.cli import fttui, start
from tests.support.training import write_config
from tests.support.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(600)]
WORDS = ["lr=1e-4,1e-2,3e-2", "--steps", "40", "--yes", "--then", "pause"]
DEVICES = ["--devices", "cpu,cpu"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an ended run with a checkpoint at step 10 of 60."""
    folder = tmp_path_factory.mktemp("race")
    config, _ = write_config(folder, "sft")
    sets = ["train.steps=60", "eval.every=10", "checkpoint.every=10", "checkpoint.keep=20"]
    words = [word for one in sets for word in ("--set", one)]
    done = fttui("run", str(config), "--headless", *words, runs=folder / "runs")
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "runs"


@pytest.fixture
def run(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunDirectory]:
    """A copy of the run, of which no process is left after the test."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # other numbers of threads round differently
    (name,) = [file.parent.name for file in trained.glob("*/run.json")]
    shutil.copytree(trained / name, tmp_path / "runs" / name)
    run = RunDirectory(tmp_path / "runs" / name)
    run.endpoint.unlink(missing_ok=True)
    yield run
    for one in (run, *sides(run)):
        for mark in (read_engine(one), read_endpoint(one)):
            if mark is not None and mark.alive:
                with suppress(ProcessLookupError):
                    os.kill(mark.pid, signal.SIGKILL)


def sides(run: RunDirectory) -> list[RunDirectory]:
    return [RunDirectory(file.parent) for file in run.side_runs.glob("*/run.json")]


def alive(run: RunDirectory) -> bool:
    return any(mark is not None and mark.alive for mark in (read_engine(run), read_endpoint(run)))


def race(run: RunDirectory, *words: str) -> subprocess.CompletedProcess[str]:
    return fttui("race", *words, runs=run.path.parent, timeout_s=400)


def begin(run: RunDirectory) -> subprocess.Popen[str]:
    """Start a race on two devices, and wait until two engines train."""
    process = start("race", f"{run.id}@10", *WORDS, *DEVICES, runs=run.path.parent)
    until(lambda: sum(steps_of(one) > 0 for one in sides(run)) == 2, timeout_s=240)
    return process


def steps_of(run: RunDirectory) -> int:
    return sum(isinstance(event, StepFinished) for event in events_of(run))


def events_of(run: RunDirectory) -> list[object]:
    found = map(decode_record, FrameReader(run.journal)) if run.journal.exists() else ()
    return [record.event for record in found if record is not None]


def state_of(run: RunDirectory) -> RaceState:
    found = read_race(run)
    assert found is not None
    return found


def test_it_finds_what_a_race_in_the_run_finds_and_the_run_continues_with_the_winner(
    run: RunDirectory, tmp_path: Path
) -> None:
    serial = RunDirectory(tmp_path / "serial" / run.id)
    shutil.copytree(run.path, serial.path)
    one = race(serial, f"{run.id}@10", *WORDS)
    with suppress(ProcessLookupError):
        engine = read_engine(serial)
        assert engine is not None
        os.kill(engine.pid, signal.SIGKILL)
    done = race(run, f"{run.id}@10", *WORDS, *DEVICES)
    assert (one.returncode, done.returncode) == (0, 0), one.stdout + done.stdout + done.stderr
    want, found = state_of(serial), state_of(run)
    assert [v.losses for v in found.variants] == [v.losses for v in want.variants]
    assert [(v.score, v.rounds, v.beaten) for v in found.variants] == [
        (v.score, v.rounds, v.beaten) for v in want.variants
    ]
    assert sum(v.beaten for v in found.variants) == 1  # successive halving
    assert (found.best, found.kept) == (want.best, want.best)
    table = "  #  variant"
    assert (
        done.stdout.split(table)[1].splitlines()[:6] == one.stdout.split(table)[1].splitlines()[:6]
    )
    assert found.repeated_gap == 0
    assert "every loss is that on CPU" in done.stdout
    kept = found.variants[found.kept or 0]
    assert (
        state_of(run).variants[found.kept or 0].settings == want.variants[want.kept or 0].settings
    )
    steps = {
        record.step: record.event.loss
        for record in map(decode_record, FrameReader(run.journal))
        if record is not None
        and record.timeline == kept.timelines[-1]
        and isinstance(record.event, StepFinished)
    }
    assert steps == kept.losses
    others = [n for n in range(len(found.plan)) if n != found.kept]
    # from the end to step 10 at the start, to the base in the race, and there for each variant
    assert sum(isinstance(event, RolledBack) for event in events_of(run)) == 3 + len(others)
    for n in others:
        curve = {
            record.event.at: record.event.loss
            for record in map(decode_record, FrameReader(run.journal))
            if record is not None
            and record.timeline == found.variants[n].timelines[-1]
            and isinstance(record.event, VariantStep)
            and record.event.variant == found.plan[n].label
        }
        assert curve == want.variants[n].losses
    assert not run.side_runs.exists()
    assert [one.id for one in list_runs(run.path.parent)] == [run.id]
    assert summarize(run).state is RunState.PAUSED
    resumed = fttui("ctl", run.id, "resume", runs=run.path.parent)
    assert resumed.returncode == 0, resumed.stderr
    until(lambda: summarize(run).state is RunState.FINISHED, timeout_s=120)


def test_a_killed_engine_loses_a_variant_but_not_the_race(run: RunDirectory) -> None:
    process = begin(run)
    engine = read_engine(sides(run)[0])
    assert engine is not None
    os.kill(engine.pid, signal.SIGKILL)
    said = process.communicate(timeout=400)[0]
    assert process.returncode == 0, said
    found = state_of(run)
    lost = [n for n, one in enumerate(found.variants) if one.failed]
    assert len(lost) == 1
    assert "was lost" in found.variants[lost[0]].failed
    assert found.ended
    assert found.kept not in lost
    assert found.repeated_gap == 0
    assert not run.side_runs.exists()


def test_a_killed_race_leaves_no_engine_and_is_resumed(run: RunDirectory) -> None:
    process = begin(run)
    process.kill()
    process.communicate()
    until(lambda: not any(map(alive, sides(run))), timeout_s=60)
    found = state_of(run)
    assert not found.ended
    assert summarize(run).state is RunState.PAUSED
    again = race(run, run.id, "--resume")
    assert again.returncode == 0, again.stdout + again.stderr
    assert state_of(run).repeated_gap == 0
    assert not run.side_runs.exists()


def test_after_an_interruption_the_run_returns_to_its_settings(run: RunDirectory) -> None:
    process = begin(run)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=120)[0]
    assert process.returncode == 130, said
    assert "the run is paused at its start, with the settings before it" in said
    assert not any(map(alive, sides(run)))
    before = state_of(run).before
    cancelled = race(run, run.id, "--cancel")
    assert cancelled.returncode == 0, cancelled.stdout + cancelled.stderr
    assert not run.side_runs.exists()
    changes = [e for e in events_of(run) if isinstance(e, StateChanged)]
    assert changes[-1].state is RunState.PAUSED
    assert state_of(run).before == before
    assert state_of(run).kept is None
    assert steps_of(run) == 60  # the run itself trained no step
