from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fttui.engine.errors import NoSuchRun
from fttui.engine.protocol.states import RunState
from fttui.engine.run.run_index import RunSummary
from fttui.tui.connection.run_list import RunListing
from fttui.tui.screens.handlers import background
from fttui.tui.screens.plots.compare import (
    MOST_DIFFERENCES,
    CompareScreen,
    _differences,
    _note,
)
from fttui.tui.screens.text_page import TextPage
from fttui.tui.view_model.app_state import AppState, OtherRun
from fttui.tui.view_model.config_view import ConfigView, ResolvedKey
from fttui.tui.view_model.history.ranking import MOST_RUNS
from fttui.tui.view_model.reducer import apply_many
from fttui.tui.view_model.run_view import RunView
from tests.support.session_double import FakeSession, Script, eventful
from tests.unit.tui.app.driving import driven, text_of, until


def _other(keys: int) -> OtherRun:
    resolved = tuple(ResolvedKey(f"key{n}", "1", "file") for n in range(keys))
    return OtherRun(id="other", run=RunView(), config=ConfigView(resolved=resolved))


@pytest.mark.parametrize(("more", "said"), [(0, ""), (1, "and 1 more key"), (7, "and 7 more keys")])
def test_differences_that_are_not_shown_are_counted(more: int, said: str) -> None:
    shown = _differences(AppState(others=(_other(MOST_DIFFERENCES + more),)), 100).plain
    assert shown.count("– → 1") == MOST_DIFFERENCES
    assert said in shown
    assert ("more key" in shown) == bool(more)


@pytest.mark.parametrize(("runs", "told"), [(3, []), (66, ["the first 63 of 66 marked runs"])])
async def test_marked_runs_beyond_the_signs_are_told(
    runs: int, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def read(path: object) -> OtherRun:
        return _other(1)

    monkeypatch.setattr(background, "read_other_run", read)
    heard: list[str] = []
    app: Any = SimpleNamespace(
        state=AppState(), tell=heard.append, go=lambda mode: None, redraw=lambda: None
    )
    await background._compare_runs(app, [_listing(n) for n in range(runs)])
    assert len(app.state.others) == min(runs, MOST_RUNS - 1)
    assert (app.state.left_out, app.state.reading_runs) == (runs - len(app.state.others), 0)
    assert ("△ 3 marked runs left out" in _note(app.state).plain) == (runs == 66)
    assert len(heard) == len(told)
    assert all(part in text for part, text in zip(told, heard, strict=True))


@pytest.mark.parametrize("gone", [0, 1, 2])
async def test_a_run_that_cannot_be_read_leaves_the_others_in(
    monkeypatch: pytest.MonkeyPatch, gone: int
) -> None:
    async def read(path: Path) -> OtherRun:
        if path.name == f"r{gone}":
            raise NoSuchRun("gone")
        return _other(1)

    monkeypatch.setattr(background, "read_other_run", read)
    heard: list[str] = []
    opened: list[str] = []
    app: Any = SimpleNamespace(
        state=AppState(),
        tell=lambda text, **_: heard.append(text),
        go=opened.append,
        redraw=lambda: None,
    )
    await background._compare_runs(app, [_listing(n) for n in range(3)])
    assert (len(app.state.others), app.state.left_out) == (2, 1)
    assert heard == [f"the run cannot be read: r{gone}: gone"]
    assert opened == ["compare"]


def _listing(number: int) -> RunListing:
    return RunListing(
        RunSummary(
            id=f"r{number}", name="r", path=f"/r{number}", created=0, state=RunState.FINISHED
        )
    )


def _candidates(count: int) -> tuple[OtherRun, ...]:
    run = apply_many(RunView(), Script().start().run().train(30).records)
    return tuple(
        OtherRun(
            id=f"other-{n:02d}",
            run=run,
            config=ConfigView(resolved=(ResolvedKey("train.lr", f"{n}e-5", "file"),)),
        )
        for n in range(count)
    )


async def test_sixty_four_runs_are_listed_filtered_picked_and_hidden() -> None:
    async with driven(FakeSession(eventful())) as (app, pilot):
        app.state = replace(app.state, others=_candidates(MOST_RUNS - 1))
        app.go("compare")
        await until(pilot, lambda: "runs, best first" in text_of(app))
        await until(pilot, lambda: "other-03" in text_of(app))
        screen = app.screen
        assert isinstance(screen, CompareScreen)
        assert len(app.state.compared) == MOST_RUNS
        await pilot.press("down", "down", "down")
        await until(pilot, lambda: app.state.plot.picks.current == screen.under_cursor() != "")
        current = app.state.plot.picks.current
        await pilot.press("v")
        await until(pilot, lambda: current in app.state.plot.picks.hidden)
        await pilot.press("v", "slash", *"other-4", "enter")
        await until(pilot, lambda: "10 of 64 match" in text_of(app))
        assert "other-03" not in text_of(app)
        await pilot.press("escape")
        await until(pilot, lambda: "match" not in text_of(app))
        await pilot.press("home", "down", "enter")
        await until(pilot, lambda: isinstance(app.screen, TextPage))
