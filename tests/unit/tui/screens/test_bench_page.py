"""Benchmarks started in the app: asked for, measured in a process, shown with their results."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from fttui.engine.errors import FttuiError
from fttui.engine.protocol.benchmarks.result import BenchmarkFinished
from fttui.engine.run.run_dir import RunDirectory
from fttui.tui.connection.race.race_process import (
    BENCH_LOG,
    last_words,
    running_bench,
    start_bench,
)
from fttui.tui.dialogs.bench_prompt import bench_arguments, bench_lines, read_bench
from fttui.tui.screens.bench_page import BenchPage
from fttui.tui.screens.handlers import bench
from tests.support.benchmarks import result
from tests.support.session_double import FakeSession, eventful
from tests.unit.tui.app.driving import driven, text_of, told, until
from tests.unit.tui.app.folders import write_run


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("hellaswag", ["--tasks", "hellaswag"]),
        ("a,b c --limit 8 --base", ["--tasks", "a,b,c", "--limit", "8", "--base"]),
        ("--include-path 'my tasks' mine", ["--tasks", "mine", "--include-path", "my tasks"]),
    ],
)
def test_typed_words_are_arguments_of_the_command(text: str, arguments: list[str]) -> None:
    assert bench_arguments(text) == arguments
    assert read_bench(text).text == text


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("--base", "got no task"),
        ("a --limit", "--limit: got no value"),
        ("a --limit --base", "--limit: got no value"),
        ("a --fast", "got --fast, expected one of --base"),
        ("a 'b", "No closing quotation"),
    ],
)
def test_a_wrong_word_is_an_error(text: str, error: str) -> None:
    assert error in read_bench(text).error


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    """The processes started; all are ended."""
    found: list[subprocess.Popen[bytes]] = []
    yield found
    for process in found:
        process.kill()
        process.wait()


async def test_a_measurement_shows_its_progress_and_its_results(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    processes: list[subprocess.Popen[bytes]],
) -> None:
    asked: list[tuple[str | None, list[str]]] = []

    def start(
        run: RunDirectory, checkpoint: str | None, arguments: Sequence[str]
    ) -> subprocess.Popen[bytes]:
        asked.append((checkpoint, list(arguments)))
        (run.path / "logs").mkdir(exist_ok=True)
        (run.path / "logs" / "bench.log").write_text("measuring hellaswag 40 %\n")
        waits = [sys.executable, "-c", "input()"]
        processes.append(subprocess.Popen(waits, stdin=subprocess.PIPE))
        return processes[-1]

    monkeypatch.setattr(bench, "start_bench", start)
    session = FakeSession(eventful())
    run = write_run(tmp_path, session.run_id, session.script)
    async with driven(session, folder=run.path) as (app, pilot):
        await pilot.press("b")
        await until(pilot, lambda: "type tasks of lm-evaluation-harness" in text_of(app))
        await pilot.press(*"hellaswag --limit 8", "enter")
        await until(pilot, lambda: isinstance(app.screen, BenchPage))
        assert asked == [(None, ["--tasks", "hellaswag", "--limit", "8"])]
        await until(pilot, lambda: "measuring hellaswag 40 %" in text_of(app))
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(app.screen, BenchPage))
        await pilot.press("b")
        await until(pilot, lambda: isinstance(app.screen, BenchPage))
        assert len(asked) == 1, "the measurement that runs is shown, and no other is started"
        first = f"fttui bench {run.id} --tasks hellaswag --limit 8"
        await until(pilot, lambda: f"benchmarks are being measured already: {first}" in told(app))
        measured = result(step=session.script.step, timeline=session.script.timeline)
        session.script.add(BenchmarkFinished(result=measured))
        session.push()
        name = measured.name_of(next(iter(measured.scores)))
        await until(pilot, lambda: name in text_of(app))
        processes[0].communicate(b"\n")
        app.screen.run_worker(app.screen._look())  # type: ignore[attr-defined]
        await until(pilot, lambda: "measured" in text_of(app))


async def test_the_measurement_of_another_app_is_named_and_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: list[subprocess.Popen[bytes]]
) -> None:
    session = FakeSession(eventful())
    run = write_run(tmp_path, session.run_id, session.script)
    sleeps = tmp_path / "sleeps"
    sleeps.write_text("#!/bin/sh\nexec sleep 60\n")
    sleeps.chmod(0o700)
    monkeypatch.setattr("fttui.tui.connection.race.race_process.sys.executable", str(sleeps))
    processes.append(start_bench(run, "step-000400", ["--tasks", "hellaswag"]))
    with pytest.raises(FttuiError, match=f"fttui bench {run.id}@step-000400 --tasks hellaswag"):
        start_bench(run, None, ["--tasks", "arc_easy"])
    assert len(last_words(run, BENCH_LOG)) == 1, "the log of the first is kept"
    async with driven(session, folder=run.path) as (app, pilot):
        await pilot.press("b")
        await until(pilot, lambda: isinstance(app.screen, BenchPage))
        await until(pilot, lambda: "measuring …" in text_of(app))
        assert "already: fttui bench" in told(app)
        processes[0].kill()
        processes[0].wait()
        app.screen.run_worker(app.screen._look())  # type: ignore[attr-defined]
        await until(pilot, lambda: "ended" in text_of(app))
    assert running_bench(run) is None


def test_of_a_progress_only_the_newest_line_is_shown() -> None:
    said = ["fttui bench a", "measuring a", "words 3 %", "words 100 %", "more 5 %", "done"]
    lines = list(bench_lines("fttui bench a", True, None, said, []))
    assert lines == [
        "fttui bench a", "measuring …", "", "measuring a", "words 100 %", "more 5 %", "done",
    ]  # fmt: skip


async def test_a_run_on_another_machine_names_the_command_to_type_there() -> None:
    async with driven(FakeSession(eventful())) as (app, pilot):
        await pilot.press("b")
        await until(pilot, lambda: "measure on the machine of the run" in told(app))
