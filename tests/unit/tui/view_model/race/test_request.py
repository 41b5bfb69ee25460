"""The words of a race, as they are typed in the app and given to its process."""

from __future__ import annotations

import pytest

from fttui.engine.errors import ConfigError
from fttui.tui.view_model.race.request import RaceRequest, parse_request


def test_settings_and_options_are_read_in_any_order() -> None:
    found = parse_request(["--steps", "60", "lr=1,2", "--by=loss", "--no-halving", "clip=1,2",
                           "--keep", "none", "--then", "pause"])  # fmt: skip
    assert found == RaceRequest(
        ("lr=1,2", "clip=1,2"), None, 60, "loss", halving=False, keep="none", then="pause"
    )


def test_arguments_are_read_back_as_the_same_request() -> None:
    for wanted in (
        RaceRequest(("lr=1,2",)),
        RaceRequest(("lr=1,2",), None, 7, "eval.acc", halving=False, keep="2", then="stop"),
        RaceRequest(("lr=1,2",), devices="0,1"),
    ):
        assert parse_request(wanted.arguments) == wanted


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["lr=1,2", "--step", "3"], "got --step, expected settings and options"),
        (["--steps", "many"], "a whole number ≥ 1, got many"),
        (["--steps"], "a whole number ≥ 1, got nothing"),
        (["--then", "dance"], "must be go, pause, stop; got dance"),
    ],
)
def test_other_words_are_refused(words: list[str], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        parse_request(words)
