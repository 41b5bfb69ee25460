"""Alarms of one excursion are one event of the score, true or false."""

from __future__ import annotations

from typing import Any

import pytest

from fttui.engine.core.anomaly import ALARM, Alert
from tests.bench.labelled_logs import Alarm, groups

USUAL, TOP = 1.0, 5.0


def alarm(record: int, kind: str = "spike", baseline: float | None = USUAL) -> Alarm:
    alert = Alert(
        id=f"{kind}-{record}", kind=kind, severity=ALARM, step=record, headline="",
        value=TOP, baseline=baseline,
    )  # fmt: skip
    return Alarm(record, alert)


def high_until(last: int, count: int = 120) -> list[dict[str, Any]]:
    """A loss that jumps at record 10 and is back after record `last`."""
    return [{"loss": 4.0 if 10 < i <= last else TOP if i == 10 else USUAL} for i in range(count)]


def test_alarms_close_together_are_one() -> None:
    assert groups([alarm(10), alarm(19), alarm(40)], high_until(10)) == [[10, 19], [40]]


@pytest.mark.parametrize(("last", "expected"), [(35, [[10, 30]]), (20, [[10], [30]])])
def test_alarms_are_one_until_the_loss_is_back(last: int, expected: list[list[int]]) -> None:
    assert groups([alarm(10), alarm(30, "divergence")], high_until(last)) == expected


def test_a_loss_that_stays_up_does_not_swallow_later_alarms() -> None:
    assert groups([alarm(10), alarm(59), alarm(60)], high_until(119)) == [[10, 59], [60]]


def test_an_alarm_without_a_level_of_the_loss_is_one_by_nearness_only() -> None:
    records = high_until(60)
    for first in (alarm(10, "grad_explosion"), alarm(10, "nonfinite", None)):
        assert groups([first, alarm(30)], records) == [[10], [30]]
