from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from fttui.engine.errors import EngineGone, FttuiError
from fttui.engine.protocol.requests import ConfigTexts
from fttui.tui.screens.handlers import background

TEXTS = ConfigTexts(ref=1, resolved="a: 1", source="a: 1")


class Session:
    """A session that gives one answer after the other to the request for the configuration."""

    def __init__(self, *answers: ConfigTexts | FttuiError) -> None:
        self._answers = list(answers)

    async def fetch_configs(self) -> ConfigTexts:
        answer = self._answers.pop(0)
        if isinstance(answer, FttuiError):
            raise answer
        return answer


@pytest.mark.parametrize(
    ("answers", "found"),
    [
        ((EngineGone("not connected yet"), TEXTS), TEXTS),
        ((FttuiError("the remote fttui is too old"), TEXTS), None),
        ([EngineGone("gone")] * background.CONFIG_TRIES, None),
    ],
)
def test_a_remote_configuration_is_asked_for_again_unless_it_is_refused(
    answers: Any, found: ConfigTexts | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "CONFIG_RETRY_S", 0.0)
    app: Any = SimpleNamespace(run_directory=None, session=Session(*answers))
    assert asyncio.run(background._config_files(app)) == found
