"""A race in the app: its variants are asked for, its cost is told, its table follows its file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from textual.widgets import Input

from fttui.engine.errors import ConfigError
from fttui.engine.run.processes.marks import EngineMark, ProcessMark, write_mark
from fttui.engine.run.run_dir import RunDirectory
from fttui.tui.connection.race.race_file import race_lock, store_race
from fttui.tui.connection.race.race_source import LocalRace, RaceLook, follow_race
from fttui.tui.connection.ssh.remote_host import RemoteHost
from fttui.tui.screens.handlers import races
from fttui.tui.screens.race_page import RacePage
from fttui.tui.view_model.race.race_state import RaceState, VariantState
from tests.support.remote_machine import pipe_ssh
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
        assert "kept" in text_of(app)
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
        source = LocalRace(run, process)  # type: ignore[arg-type]  # a stand-in
        page = RacePage(source, began=True)
        await app.push_screen(page)
        await until(pilot, lambda: "fttui: no room" in text_of(app))
        assert "best:" not in text_of(app)


async def test_the_page_of_an_interrupted_race_names_the_key_that_resumes_it(
    tmp_path: Path,
) -> None:
    run = folder(tmp_path)
    store_race(run, going())
    async with driven(FakeSession(eventful()), folder=run.path) as (app, pilot):
        await app.push_screen(RacePage(LocalRace(run)))
        await until(pilot, lambda: "E resumes it, or returns the run" in text_of(app))
        assert "--resume" not in text_of(app)
        await pilot.press("E")
        await until(pilot, lambda: "interrupted race" in text_of(app))


async def test_a_race_that_another_process_begins_replaces_the_ended_one(tmp_path: Path) -> None:
    run = folder(tmp_path)
    older = going()
    older.ended, older.kept, older.running = True, 0, None
    store_race(run, older)
    async with driven(FakeSession(eventful()), folder=run.path) as (app, pilot):
        page = RacePage(LocalRace(run))
        await app.push_screen(page)
        await until(pilot, lambda: "this race has ended; no race is running" in text_of(app))
        with race_lock(run):
            await page._look()
            await until(pilot, lambda: "the race begins" in text_of(app))
            assert "best:" not in text_of(app)
            store_race(run, going())
            await page._look()
            await until(pilot, lambda: "now: variant 2, lr 2e-4: begins 40" in text_of(app))
            newer = older
            newer.words = ["lr=3e-4,4e-4"]
            store_race(run, newer)
            await page._look()
            await until(pilot, lambda: "best: lr 3e-4" in text_of(app))


@pytest.mark.long
async def test_the_run_of_another_machine_is_raced_there() -> None:
    async with driven(FakeSession(eventful())) as (app, pilot):
        await pilot.press("E")
        await until(pilot, lambda: "on the machine of its run" in told(app))


@pytest.fixture
def far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RemoteHost:
    """This machine as a remote host, whose shell is called through a pipe."""
    monkeypatch.setenv("FTTUI_SSH", pipe_ssh(tmp_path))
    monkeypatch.setenv("FTTUI_RUNS", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return RemoteHost("far", f"{sys.executable} -P -m fttui.tui")


@pytest.mark.long
async def test_a_remote_run_is_raced_from_the_app(
    tmp_path: Path, far: RemoteHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def start(host: RemoteHost, words: list[str]) -> str:
        asked.append(words)
        ended = going()
        ended.running, ended.ended, ended.kept = None, True, 0
        store_race(run, ended)
        return ""

    monkeypatch.setattr(races, "run_there", start)
    run = folder(tmp_path)
    session = FakeSession(eventful())
    session.run_id = run.id
    session.remote_host = far  # type: ignore[attr-defined]  # as a session of a remote run has it
    async with driven(session) as (app, pilot):
        await pilot.press("E")
        await until(pilot, lambda: "race settings from here" in text_of(app))
        app.screen.query_one(Input).value = "lr=x0.5,now --steps 4"
        await pilot.press("enter")
        await until(pilot, lambda: "race on far" in text_of(app) or bool(told(app)))
        assert "cost: 8 steps" in text_of(app), told(app)
        await pilot.press("y")
        await until(pilot, lambda: isinstance(app.screen, RacePage) or bool(told(app)))
        begins, goes = ["race", str(run.path), "lr=x0.5,now"], ["--yes", "--detach"]
        assert asked[0][:3] == begins
        assert [word for word in asked[0] if word in goes] == goes
        await until(pilot, lambda: "best: lr 1e-4" in text_of(app))


@pytest.mark.parametrize("word", ["lr=1;rm", "a b", "$HOME", "`x`", "'", ""])
def test_what_a_shell_could_change_is_not_sent(far: RemoteHost, word: str) -> None:
    with pytest.raises(ConfigError, match="cannot be sent to far"):
        far.argv(["race", word], may_prompt=False)
    assert (
        "race lr=x0.5,now" in RemoteHost("far").argv(["race", "lr=x0.5,now"], may_prompt=False)[-1]
    )


def test_a_race_that_is_followed_is_printed_when_it_changes(tmp_path: Path) -> None:
    run = folder(tmp_path)
    store_race(run, going())
    with race_lock(run):
        lines = follow_race(run, sleep=lambda seconds: None)
        first = msgspec.json.decode(next(lines), type=RaceLook)
        assert first.conducted
        assert first.race is not None
        ended = going()
        ended.running, ended.ended = None, True
        store_race(run, ended)
        assert msgspec.json.decode(next(lines), type=RaceLook).race is not None
    last = [msgspec.json.decode(line, type=RaceLook) for line in lines][-1]
    assert not last.conducted
    assert last.race is not None
    assert last.race.ended


async def test_variants_that_train_side_by_side_are_on_the_page(
    tmp_path: Path, process: Process
) -> None:
    run = folder(tmp_path)
    state = going()
    state.devices, state.running = ["0", "1"], None
    for n, one in enumerate(state.variants):
        one.rounds, one.step, one.at, one.device = 0, 800, 810 + n, f"GPU {n}"
    source = LocalRace(run, process)  # type: ignore[arg-type]
    store_race(run, state)
    async with driven(FakeSession(eventful()), folder=run.path) as (app, pilot):
        await app.push_screen(RacePage(source))
        await until(pilot, lambda: "on GPU 1: step 11 of 40" in text_of(app))
        assert "now: variant 1, lr 1e-4, on GPU 0: step 10 of 40" in text_of(app)
