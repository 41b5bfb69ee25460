"""Lightning gets a callback from fttui only where the environment asks for it."""

from __future__ import annotations

import pytest

from fttui.engine.watch.lightning import entry_points


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, False),
        ({"FTTUI": "off"}, False),
        ({"FTTUI": "off", "FTTUI_EXEC": "1"}, False),
        ({"FTTUI": "on"}, True),
        ({"FTTUI_EXEC": "1"}, True),
    ],
    ids=str,
)
def test_a_trainer_is_watched_only_when_asked_for(
    environment: dict[str, str], wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FTTUI", "FTTUI_EXEC"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert entry_points.watching_requested() is wanted
    if not wanted:
        assert entry_points.of_lightning() == []
        assert entry_points.of_pytorch_lightning() == []
