"""Trackers of a watched script: those of the call, else those of the environment."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from fttui.engine.config.schema import RunConfig
from fttui.engine.watch import watch_options
from fttui.engine.watch.watch_options import TRACKERS, WatchOptions

CONFIG = msgspec.convert(
    {"name": "x", "model": {"id": "m"}, "data": {"train": "d"}, "train": {"steps": 9}}, RunConfig
)


@pytest.mark.parametrize(
    ("given", "environment", "wanted"),
    [
        (None, None, []),
        (None, "wandb, tensorboard,,wandb", ["wandb", "tensorboard"]),
        (["mlflow"], "wandb", ["mlflow"]),
        ("mlflow,trackio", None, ["mlflow", "trackio"]),
        ((), "wandb", []),
    ],
)
def test_the_call_has_precedence_over_the_environment(
    given: Sequence[str] | None,
    environment: str | None,
    wanted: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch_options, "find_spec", lambda name: object())
    monkeypatch.delenv(TRACKERS, raising=False)
    if environment is not None:
        monkeypatch.setenv(TRACKERS, environment)
    assert WatchOptions(trackers=given).with_trackers(CONFIG).trackers == wanted


def test_what_cannot_be_delivered_to_is_named_and_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(watch_options, "find_spec", lambda name: name == "mlflow" or None)
    chosen = WatchOptions(trackers=["wandbb", "trackio", "mlflow"])
    assert chosen.with_trackers(CONFIG).trackers == ["mlflow"]
    unknown, missing = capsys.readouterr().err.splitlines()
    assert "wandbb" in unknown
    assert "wandb, tensorboard, mlflow" in unknown
    assert "pip install 'fttui[trackio]'" in missing
    assert "fttui sync RUN --to trackio" in missing
