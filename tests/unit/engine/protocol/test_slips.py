"""A rate far above the present one looks like a typing error, in whatever form it comes."""

from __future__ import annotations

import pytest

from fttui.engine.protocol.commands import COMMANDS, parse_command, slip
from fttui.engine.protocol.settings import LearningRate

PRESENT = LearningRate(schedule=4e-4, scale=0.5)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("lr scale 1.5", None),
        ("lr scale 1.6", "would be 0.00064, ×3.2 the present 0.0002"),
        ("lr scale 0.0001", None),
        ("lr set 6e-4", None),
        ("lr set 7e-4", "would be 0.0007, ×3.5 the present 0.0002"),
        ("lr set 5", "would be 5, ×25,000 the present 0.0002"),
        ("rollback 60 lr=0.5", None),
        ("rollback 60 lr=5", "would be 0.002, ×10 the present 0.0002"),
        ("rollback 60", None),
        ("lr reset", None),
        ("clip 100", None),
        ("note lr scale 100", None),
    ],
)
def test_more_than_three_times_the_present_rate_is_a_slip(typed: str, said: str | None) -> None:
    found = slip(parse_command(typed), PRESENT)
    assert found is None if said is None else found is not None and said in found, found


@pytest.mark.parametrize(
    ("typed", "asks"),
    [("lr scale 3", False), ("lr scale 3.1", True), ("lr set 0.09", False), ("lr set 0.5", True)],
)
def test_before_the_first_step_a_factor_is_compared_with_the_schedule(
    typed: str, asks: bool
) -> None:
    assert (slip(parse_command(typed), LearningRate()) is not None) is asks


def test_any_rate_is_far_above_none() -> None:
    assert "now it is 0" in (slip(parse_command("lr set 1e-4"), LearningRate(schedule=0.0)) or "")


def test_every_command_with_a_rate_in_it_has_the_rule() -> None:
    far = {"lr scale": "lr scale 1e6", "lr set": "lr set 1e5", "rollback": "rollback last lr=1e6"}
    guarded = {
        c.verb for c in COMMANDS if c.verb in far and c.slip(parse_command(far[c.verb]), PRESENT)
    }
    assert guarded == set(far)
