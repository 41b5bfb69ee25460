from __future__ import annotations

import statistics

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from fttui.engine.core.sliding_window import LastValues, SlidingWindow, UpperWindow

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


@given(st.lists(finite, min_size=1, max_size=200), st.integers(1, 60))
def test_the_last_values_have_the_same_median(values: list[float], size: int) -> None:
    last, window = LastValues(size), SlidingWindow(size)
    assert [last.push(value) for value in values] == [window.push(value) for value in values]
    assert (last.values, last.median()) == (window.values, window.median())


@given(
    st.lists(st.one_of(finite, st.sampled_from((0.0, 1.0, 2.0))), min_size=1, max_size=400),
    st.integers(1, 90),
    st.integers(1, 9),
)
def test_the_highest_are_those_of_all(values: list[float], size: int, every: int) -> None:
    upper, window = UpperWindow(size), SlidingWindow(size)
    for n, value in enumerate(values):
        upper.push(value)
        window.push(value)
        count = 1 + len(window) // 10
        if not n % every:
            assert upper.highest_of(count)[-count:] == window.ordered[-count:]
    again = msgspec.convert(msgspec.to_builtins(upper), UpperWindow)
    assert (again.values, len(again)) == (window.values, len(window))
    assert again.highest_of(1)[-1] == max(window.values)


def test_a_window_keeps_few_of_its_numbers_sorted() -> None:
    upper = UpperWindow(1000)
    for n in range(3000):
        upper.push(float(n * 7919 % 3001))
        upper.highest_of(max(1, len(upper) // 10))
    assert len(upper.highest) < 500


def test_equal_numbers_are_not_sorted_again_and_again() -> None:
    upper = UpperWindow(1000)
    for _ in range(1000):
        upper.push(1.0)
    kept = upper.highest_of(10)
    upper.push(1.0)
    assert upper.highest_of(10) is kept


def test_two_windows_share_nothing() -> None:
    first, second = SlidingWindow(3), SlidingWindow(3)
    first.push(1.0)
    assert len(second) == 0
