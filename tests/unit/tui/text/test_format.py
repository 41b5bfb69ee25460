from __future__ import annotations

import math

import pytest

from fttui.tui.plot.panels import LEARNING_RATE
from fttui.tui.text import format as fmt


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"), (math.nan, "NaN"), (math.inf, "∞"), (-math.inf, "-∞"), (0, "0.000"),
        (1.41234, "1.412"), (12.345, "12.35"), (123.4, "123.4"), (0.0612, "0.0612"),
        (3.1e-5, "3.10e-5"), (1937.2, "1,937"), (2e7, "2.00e7"), (-1.5, "-1.500"),
    ],
)  # fmt: skip
def test_numbers(value: float | None, text: str) -> None:
    assert fmt.number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.24, "0.2 s"), (0.0736, "74 ms"), (0.0001, "1 ms"), (0.0996, "0.1 s"), (0, "0.0 s"),
        (9.96, "10 s"), (59.6, "1 m 0 s"), (200, "3 m 20 s"),
        (4320, "1 h 12 m"), (183_600, "2 d 3 h"), (None, "–"), (-1, "0.0 s"), (math.inf, "–"),
    ],
)  # fmt: skip
def test_durations(seconds: float | None, text: str) -> None:
    assert fmt.duration(seconds) == text


def test_an_age_is_the_largest_unit() -> None:
    assert (fmt.age(0.21), fmt.age(200), fmt.age(4320)) == ("0.2 s", "3 m", "1 h")
    assert (fmt.age(0.01), fmt.age(0.07), fmt.age(None)) == ("0.0 s", "0.1 s", "–")


def test_sizes() -> None:
    assert fmt.size(5_261_334_938) == "4.9 GiB"
    assert fmt.size(61_200_000) == "58.4 MiB"
    assert fmt.size(2048) == "2 KiB"
    assert fmt.size_of(5_261_334_938, 6 * 2**30) == "4.9 / 6.0 GiB"


def test_learning_rates_and_counts() -> None:
    assert fmt.learning_rate(1e-4) == "1.00e-4"
    assert fmt.learning_rate(0.0) == "0"
    assert (fmt.learning_rate(math.nan), fmt.learning_rate(math.inf)) == ("NaN", "∞")
    assert fmt.count(1240) == "1,240"
    assert fmt.short_count(134_515_008) == "134.5M"
    odd = (math.nan, math.inf, -math.inf)
    assert [fmt.short_count(value) for value in odd] == ["NaN", "∞", "-∞"]
    assert fmt.percent(0.248) == "24.8 %"
    assert fmt.plural(1, "step") == "1 step"
    assert fmt.plural(412, "step") == "412 steps"


@pytest.mark.parametrize("value", [0.512, 1.2, 4.75, 9.99])
def test_losses_of_everyday_size_keep_their_width(value: float) -> None:
    assert len(fmt.number(value)) == 5


def test_axis_labels_have_the_decimals_their_span_needs() -> None:
    assert fmt.tick(2, 3.4) == "2.0"
    assert fmt.tick(1.15, 0.2) == "1.15"
    assert fmt.tick(0, 5) == "0"
    assert [fmt.tick(rate, 1e-3) for rate in (0.0005, 0.001)] == ["5.0e-4", "1.0e-3"]


def test_learning_rates_on_an_axis_are_short() -> None:
    assert LEARNING_RATE.label is not None
    labels = [LEARNING_RATE.label(rate) for rate in (0.0, 1.5e-4, 2e-4, 0.05, 0.5, 1.0)]
    assert labels == ["0", "1.5e-4", "2e-4", "5e-2", "0.5", "1"]
