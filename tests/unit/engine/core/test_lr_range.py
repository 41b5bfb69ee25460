from __future__ import annotations

import math

import pytest

from fttui.engine.core.lr_range import LrRange, Sweep


def swept(loss_at, steps: int = 100, low: float = 1e-6, high: float = 1.0) -> Sweep:
    wanted, sweep = LrRange(low, high, steps), Sweep()
    for step in range(steps):
        rate = low * wanted.factor(step)
        sweep.add(rate, loss_at(rate))
        if sweep.diverged:
            break
    return sweep


def test_rates_rise_in_equal_ratios_from_low_to_high():
    rates = [1e-4 * LrRange(1e-4, 1.0, 5).factor(step) for step in range(7)]
    assert rates[:5] == pytest.approx([1e-4, 1e-3, 1e-2, 1e-1, 1.0])
    assert rates[5:] == pytest.approx([1.0, 1.0])


def valley(rate: float) -> float:
    """Flat, falling around 1e-3, rising without end from 1e-1 on."""
    fall = 2 / (1 + math.exp(-4 * (math.log10(rate) + 3)))
    return 4 - fall + 50 * max(0.0, math.log10(rate) + 1)


def test_the_fall_and_the_cliff_are_found():
    sweep = swept(valley)
    assert sweep.diverged
    assert 0.1 < sweep.rates[-1] < 1.0
    assert sweep.steepest is not None
    assert 5e-4 < sweep.steepest < 5e-3
    assert sweep.below_lowest is not None
    assert 1e-3 < sweep.below_lowest < 2e-2


def test_a_loss_that_only_rises_suggests_nothing_steep():
    assert swept(lambda rate: 2 + math.log10(rate) / 10).steepest is None


def test_a_loss_that_is_not_finite_ends_the_sweep_and_is_left_out():
    sweep = swept(lambda rate: math.nan if rate > 1e-3 else 3.0)
    assert sweep.diverged
    assert all(math.isfinite(loss) for loss in sweep.smoothed)


def test_nothing_seen_suggests_nothing():
    assert (Sweep().steepest, Sweep().below_lowest) == (None, None)
