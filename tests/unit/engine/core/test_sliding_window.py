from __future__ import annotations

import statistics

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from fttui.engine.core.sliding_window import SlidingWindow

finite = st.floats(-1e6, 1e6)


@given(st.lists(finite, min_size=1, max_size=60), st.integers(1, 12))
def test_keeps_the_last_values_and_their_median(values: list[float], size: int) -> None:
    window = SlidingWindow(size)
    fallen = [window.push(value) for value in values]
    kept = values[-size:]
    assert window.values == kept
    assert window.ordered == sorted(kept)
    assert window.median() == statistics.median(kept)
    assert [f for f in fallen if f is not None] == values[: len(values) - len(kept)]


def test_quantiles_and_spread_of_a_uniform_ladder() -> None:
    window = SlidingWindow(101)
    for value in range(101):
        window.push(float(value))
    assert window.quantile(0.0) == 0
    assert window.quantile(0.98) == 98
    assert window.quantile(1.0) == 100
    assert window.spread() == 50 / 1.349


def test_survives_serialisation_exactly() -> None:
    window = SlidingWindow(3)
    for value in (0.1, 0.3, 0.2, 7.0):
        window.push(value)
    data = msgspec.json.encode(msgspec.to_builtins(window))
    again = msgspec.convert(msgspec.json.decode(data), SlidingWindow)
    assert (again.values, again.ordered) == (window.values, window.ordered)
    again.push(1.0)
    assert window.values == [0.3, 0.2, 7.0]


def test_two_windows_share_nothing() -> None:
    first, second = SlidingWindow(3), SlidingWindow(3)
    first.push(1.0)
    assert len(second) == 0
