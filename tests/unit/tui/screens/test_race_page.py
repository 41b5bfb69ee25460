"""A race in the app: its variants are asked for, its cost is told, its table follows its file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input

from fttui.engine.run.processes.marks import EngineMark, ProcessMark, write_mark
from fttui.engine.run.run_dir import RunDirectory
from fttui.tui.connection.race.race_file import store_race
from fttui.tui.screens.handlers import races
from fttui.tui.screens.race_page import RacePage
from fttui.tui.view_model.race.race_state import RaceState, VariantState
from tests.support.session_double import FakeSession, eventful
from tests.unit.tui.app.driving import driven, text_of, told, until
from tests.unit.tui.app.folders import write_run

Started = list[tuple[str | None, list[str]]]


class Process:
    """Stands for the process that conducts a race."""

    code: int | None = None

    def poll(self) -> int | None:
        return self.code


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Process:
    return Process()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, process: Process) -> Started:
    found: Started = []

    def start(run: RunDirectory, checkpoint: str | None, arguments: list[str]) -> Any:
        found.append((checkpoint, list(arguments)))
        return process

    monkeypatch.setattr(races, "start_race", start)
    return found


def folder(tmp_path: Path) -> RunDirectory:
    """The folder of a run whose engine lives."""
    run = write_run(tmp_path, "mine", eventful())
    me = ProcessMark.current()
    mark = EngineMark(pid=me.pid, started=me.started, identity=me.identity)
    write_mark(run.engine, mark)
    return run


def going() -> RaceState:
    """A race of two variants, the first of which has ended."""
    losses = dict.fromkeys(range(801, 841), 2.0)
    state = RaceState(words=["lr=1e-4,2e-4"], steps=40, by="loss", base="step-000800",
                      base_step=800, running=1)  # fmt: skip
    state.variants = [
        VariantState(rounds=1, step=840, score=2.0, losses=losses),
        VariantState(step=800),
    ]
    return state


async def test_a_race_is_asked_for_priced_started_and_followed(
    tmp_path: Path, started: Started, process: Process
) -> None:
    run = folder(tmp_path)
    async with driven(FakeSession(eventful()), folder=run.path) as (app, pilot):
        await pilot.press("E")
        await until(pilot, lambda: "race settings from here" in text_of(app))
        app.screen.query_one(Input).value = "lr=x0.5,now --steps 4"
        await until(pilot, lambda: "2 variants, together 8 steps" in text_of(app))
        await pilot.press("enter")
        await until(pilot, lambda: "cost: 8 steps" in text_of(app))
        assert "lr x0.5" in text_of(app)
        assert started == []
        await pilot.press("y")
        await until(pilot, lambda: isinstance(app.screen, RacePage))
        assert started == [
            (None, ["lr=x0.5,now", "--steps", "4", "--keep", "best", "--yes", "--take"]),
        ]  # fmt: skip
        await until(pilot, lambda: "the race begins" in text_of(app))
        store_race(run, going())
        app.screen.run_worker(app.screen._look())  # type: ignore[attr-defined]
        await until(pilot, lambda: "now: variant 2, lr 2e-4" in text_of(app))
        ended = going()
        ended.variants[1] = VariantState(rounds=1, step=840, score=1.5,
                                         losses=dict.fromkeys(range(801, 841), 1.5))  # fmt: skip
        ended.running, ended.ended, ended.kept = None, True, 1
        store_race(run, ended)
        process.code = 0
        app.screen.run_worker(app.screen._look())  # type: ignore[attr-defined]
        await until(pilot, lambda: "best: lr 2e-4" in text_of(app))
        assert "the run continues with it" in text_of(app)
        assert "the race continues" not in text_of(app)


@pytest.mark.long
async def test_the_checkpoint_under_the_cursor_is_the_start(
    tmp_path: Path, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = folder(tmp_path)
    async with driven(FakeSession(eventful()), folder=run.path) as (app, pilot):
        await pilot.press("4")
        newest = app.state.run.checkpoints[-1].name
        await pilot.press("E")
        await until(pilot, lambda: f"race settings from {newest}" in text_of(app))


@pytest.mark.long
async def test_a_wrong_word_keeps_the_prompt_open_and_says_why(
    tmp_path: Path, started: Started
) -> None:
    async with driven(FakeSession(eventful()), folder=folder(tmp_path).path) as (app, pilot):
        await pilot.press("colon")
        app.screen.query_one(Input).value = "race weight=1,2"
        await pilot.press("enter")
        await until(pilot, lambda: "expected a setting that can change" in text_of(app))
        assert started == []


@pytest.mark.long
async def test_an_interrupted_race_goes_on_or_back(tmp_path: Path, started: Started) -> None:
    run = folder(tmp_path)
    store_race(run, going())
    async with driven(FakeSession(eventful()), folder=run.path) as (app, pilot):
        await pilot.press("E")
        await until(pilot, lambda: "was interrupted in variant 2 of 2" in text_of(app))
        await pilot.press("b")
        await until(pilot, lambda: started == [(None, ["--cancel", "--take"])])


async def test_a_race_that_did_not_begin_says_why_instead_of_an_older_result(
    tmp_path: Path, process: Process
) -> None:
    run = folder(tmp_path)
    older = going()
    older.ended, older.kept, older.running = True, 0, None
    store_race(run, older)
    async with driven(FakeSession(eventful()), folder=run.path) as (app, pilot):
        run.logs.mkdir()
        (run.logs / "race.log").write_text("plan\nfttui: no room\n")
        process.code = 2
        page = RacePage(run, process)  # type: ignore[arg-type]  # a stand-in
        await app.push_screen(page)
        await until(pilot, lambda: "fttui: no room" in text_of(app))
        assert "best:" not in text_of(app)


@pytest.mark.long
async def test_the_run_of_another_machine_is_raced_there() -> None:
    async with driven(FakeSession(eventful())) as (app, pilot):
        await pilot.press("E")
        await until(pilot, lambda: "on the machine of its run" in told(app))
