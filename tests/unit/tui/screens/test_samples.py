from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fttui.tui.screens.tables import samples
from fttui.tui.screens.tables.samples import SamplesScreen
from fttui.tui.view_model.app_state import AppState
from fttui.tui.view_model.run_view import GeneratedSample, RunView


def test_a_sample_that_is_gone_opens_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A preview of a long history may hold fewer samples than the table still shows."""
    monkeypatch.setattr(samples, "TextPage", lambda title, text: (title, text))
    opened: list[Any] = []
    run = RunView(samples=(GeneratedSample(step=3, time=1.0, prompt="p", text="t"),))
    app = SimpleNamespace(state=AppState(run=run), push_screen=opened.append)
    screen: Any = SimpleNamespace(fttui=app)
    SamplesScreen.chosen(screen, "1")
    assert opened == []
    SamplesScreen.chosen(screen, "0")
    assert opened == [("sample at step 3", "p\n\nt")]
