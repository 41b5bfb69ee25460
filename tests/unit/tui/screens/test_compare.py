from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fttui.engine.protocol.states import RunState
from fttui.engine.run.run_index import RunSummary
from fttui.tui.connection.run_list import RunListing
from fttui.tui.screens.handlers import background
from fttui.tui.screens.plots.compare import MOST_DIFFERENCES, _differences, _legend
from fttui.tui.view_model.app_state import AppState, OtherRun
from fttui.tui.view_model.config_view import ConfigView, ResolvedKey
from fttui.tui.view_model.run_view import RunView


def _other(keys: int) -> OtherRun:
    resolved = tuple(ResolvedKey(f"key{n}", "1", "file") for n in range(keys))
    return OtherRun(id="other", run=RunView(), config=ConfigView(resolved=resolved))


@pytest.mark.parametrize(("more", "said"), [(0, ""), (1, "and 1 more key"), (7, "and 7 more keys")])
def test_differences_that_are_not_shown_are_counted(more: int, said: str) -> None:
    shown = _differences(AppState(others=(_other(MOST_DIFFERENCES + more),)), 100).plain
    assert shown.count("– → 1") == MOST_DIFFERENCES
    assert said in shown
    assert ("more key" in shown) == bool(more)


@pytest.mark.parametrize(("runs", "told"), [(3, []), (5, ["the first 3 of 5 marked runs"])])
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
    chosen = [
        RunListing(
            RunSummary(id=f"r{n}", name="r", path=f"/r{n}", created=0, state=RunState.FINISHED)
        )
        for n in range(runs)
    ]
    await background._compare_runs(app, chosen)
    assert len(app.state.others) == min(runs, 3)
    assert app.state.left_out == runs - len(app.state.others)
    legend = _legend(app.state).plain
    assert ("△ 2 marked runs left out" in legend) == (runs == 5)
    assert len(heard) == len(told)
    assert all(part in text for part, text in zip(told, heard, strict=True))
