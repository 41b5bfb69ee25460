"""The rest of a learning rate schedule that a command gives another shape."""

from __future__ import annotations

import pytest

from fttui.engine.core.schedules import rest_of_schedule
from fttui.engine.protocol.settings import RestOfSchedule


@pytest.mark.parametrize(
    ("shape", "rates"),
    [
        ("constant", [8.0, 8.0, 8.0, 8.0]),
        ("linear", [8.0, 5.0, 2.0, 2.0]),
        ("cosine", [8.0, 5.0, 2.0, 2.0]),
    ],
)
def test_a_shape_leads_from_the_present_rate_to_the_floor(shape: str, rates: list[float]) -> None:
    rest = RestOfSchedule(shape=shape, start=10, lr=8.0)
    found = [rest_of_schedule(rest, step, 20, 2.0) for step in (10, 15, 20, 30)]
    assert found == pytest.approx(rates)


def test_a_rate_below_the_floor_stays() -> None:
    rest = RestOfSchedule(shape="cosine", start=0, lr=1.0)
    assert rest_of_schedule(rest, 7, 10, 2.0) == 1.0


def test_the_cosine_falls_slowly_at_first() -> None:
    cosine, linear = (RestOfSchedule(shape=s, start=0, lr=1.0) for s in ("cosine", "linear"))
    assert rest_of_schedule(cosine, 2, 10, 0.0) > rest_of_schedule(linear, 2, 10, 0.0)
