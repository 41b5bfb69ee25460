from __future__ import annotations

import math

import msgspec
import pytest

from fttui.engine.core.meters import LossAverage, RecentNorms


def test_the_average_is_unbiased_from_the_first_value_on() -> None:
    ema = LossAverage(decay=0.9)
    assert ema.value is None
    ema.push(3.0)
    assert ema.value == pytest.approx(3.0)
    ema.push(5.0)
    assert ema.value == pytest.approx((0.9 * 3 + 5) / 1.9)


def test_the_average_leaves_out_what_is_not_finite() -> None:
    ema = LossAverage()
    for value in (1.0, math.nan, math.inf, 1.0):
        ema.push(value)
    assert ema.value == pytest.approx(1.0)


def test_percentiles_interpolate() -> None:
    norms = RecentNorms()
    assert norms.percentile(90) is None
    assert norms.normal_range() is None
    for value in range(101):
        norms.push(float(value))
    assert norms.percentile(90) == pytest.approx(90)
    assert norms.percentile(0) == 0
    assert norms.percentile(100) == 100
    assert norms.normal_range() == pytest.approx((5, 95))
    norms.push(None)
    norms.push(math.nan)
    assert norms.percentile(100) == 100


def test_clip_share_forgets_old_steps() -> None:
    norms = RecentNorms()
    assert norms.clip_share() is None
    for _ in range(norms.norms.size):
        norms.push(2.0, clipped=True)
    for _ in range(norms.norms.size // 2):
        norms.push(1.0)
    assert norms.clip_share() == pytest.approx(0.5)


def test_they_survive_json() -> None:
    norms = RecentNorms()
    norms.push(0.3, clipped=True)
    data = msgspec.json.encode(msgspec.to_builtins(norms))
    again = msgspec.convert(msgspec.json.decode(data), RecentNorms)
    assert again.percentile(50) == 0.3
    assert again.clip_share() == 1.0
