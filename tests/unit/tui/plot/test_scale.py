"""The y axis: the main range, and the band that an explosion has above it."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fttui.tui.plot.scale import SPARSE, YScale, main_range, scale_of

CALM = [3.0 + math.exp(-step / 30) + 0.2 * math.sin(step) for step in range(60)]


def test_half_a_curve_of_explosion_leaves_the_calm_half_its_range() -> None:
    exploded = [*CALM, *(min(20_000.0, 4.0 * 3.0**step) for step in range(1, 31))]
    scale = scale_of([exploded], [])
    assert scale.high < 12
    assert scale.top == 20_000
    assert float(scale.shares([3.0])[0]) < 0.3 < float(scale.shares([4.0])[0])


def test_an_abandoned_explosion_does_not_flatten_the_live_curve() -> None:
    scale = scale_of([CALM], [18.9, 46_680.0])
    assert scale.high < 5
    assert scale.top == 46_680
    low, high = (float(share) for share in scale.shares([18.9, 46_680.0]))
    assert scale.main_share < low < high == pytest.approx(1.0)


def test_an_abandoned_curve_near_the_live_one_shares_its_range() -> None:
    scale = scale_of([CALM], [5.0, 2.5])
    assert scale.top is None
    assert scale.low < 2.5 < 5.0 < scale.high


@pytest.mark.parametrize("amount", [2, 5, SPARSE - 1])
def test_a_sparse_curve_is_never_cut(amount: int) -> None:
    losses = [28.67, 6.1, *([5.45] * (amount - 2))][:amount]
    scale = scale_of([losses], [])
    assert (scale.top, scale.high > 28.67, scale.low < min(losses)) == (None, True, True)


def test_a_few_evaluations_far_from_a_dense_loss_do_not_flatten_it() -> None:
    near, far = scale_of([CALM, [4.8, 4.9]], []), scale_of([CALM, [4.8, 28.67]], [])
    assert near.top is None
    assert far.high < 6
    assert far.top == 28.67


def test_the_long_fall_after_the_start_is_no_explosion() -> None:
    falling = [2.0 + 9 * math.exp(-step / 20) + 0.05 * math.sin(step) for step in range(400)]
    assert scale_of([falling], []).high > 9


def test_a_setting_that_somebody_doubled_is_no_explosion() -> None:
    assert scale_of([[1e-4] * 50 + [2e-4] * 10], [], floor=0.0).high > 2e-4


def test_a_learning_rate_of_fifty_times_has_its_place_in_the_band() -> None:
    scale = scale_of([[5e-4] * 60 + [2.5e-2] * 20], [], floor=0.0)
    assert (scale.high < 1e-3, scale.top) == (True, 2.5e-2)


def test_a_logarithmic_axis_holds_everything_and_what_has_no_logarithm_lies_below() -> None:
    scale = scale_of([CALM, [0.0]], [46_680.0], log=True)
    assert scale.top is None
    shares = scale.shares([46_680.0, 3.0, 0.0, -1.0])
    assert 0 < shares[1] < shares[0] < 1
    assert (shares[2:] < 0).all()


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=80),
    st.lists(st.floats(-1e9, 1e9), max_size=10),
    st.booleans(),
)
def test_shares_rise_with_the_values_and_the_band_ends_at_the_top(
    values: list[float], others: list[float], floored: bool
) -> None:
    scale = scale_of([values], others, floor=0.0 if floored else None)
    everything = sorted([*values, *others])
    shares = scale.shares(everything).tolist()
    assert shares == sorted(shares)
    assert shares[-1] <= 1 + 1e-9


@pytest.mark.parametrize("excess", [0.0, 5e-324, 1e-300, 1e-12, 1e-4, 1e-2, 1.0])
def test_a_value_barely_above_the_range_has_a_place(excess: float) -> None:
    high = main_range([CALM])[1]
    shares = scale_of([CALM], [high + excess]).shares([3.0, high, high + excess]).tolist()
    assert shares == sorted(shares)
    assert shares[-1] <= 1 + 1e-9


def test_the_band_goes_on_where_the_main_range_ends() -> None:
    scale = YScale(0.0, 10.0, 1000.0)
    shares = scale.shares([9.999, 10.0, 10.001])
    assert shares[2] - shares[0] < 1e-3


def test_one_spike_in_noise_is_left_out() -> None:
    rng = random.Random(1)
    noise = [rng.gauss(1.0, 0.1) for _ in range(300)]
    noise[150] = 100.0
    assert main_range([noise])[1] < 2
