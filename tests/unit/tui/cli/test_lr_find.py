"""The range of a learning rate sweep is checked before anything is loaded."""

from __future__ import annotations

import argparse

import pytest

from fttui.engine.errors import ConfigError
from fttui.tui.cli.temporary_runs import lr_find


class _Accepted(Exception):
    """Raised in place of the sweep."""


def find(low: float, high: float, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def accept(command: str) -> None:
        raise _Accepted

    monkeypatch.setattr(lr_find, "require_training_packages", accept)
    lr_find._find(argparse.Namespace(low=low, high=high, steps=steps))


@pytest.mark.parametrize(
    ("low", "high", "steps"),
    [
        (0, 0.1, 60),
        (-1e-6, 0.1, 60),
        (0.1, 0.1, 60),
        (0.1, 0.01, 60),
        (1e-6, float("inf"), 60),
        (float("nan"), 0.1, 60),
        (1e-6, 0.1, lr_find._FEWEST_STEPS - 1),
    ],
)
def test_a_range_that_cannot_be_swept_is_refused(
    low: float, high: float, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="expected 0 < --low < --high"):
        find(low, high, steps, monkeypatch)


@pytest.mark.parametrize(("low", "high"), [(1e-6, 0.1), (1e-9, 1e-8), (0.5, 2.0)])
def test_any_range_of_positive_rates_is_swept(
    low: float, high: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(_Accepted):
        find(low, high, lr_find._FEWEST_STEPS, monkeypatch)
