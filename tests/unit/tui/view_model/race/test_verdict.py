from __future__ import annotations

import math
import random

import pytest

from fttui.tui.view_model.race.verdict import paired_difference, t_quantile


def hard_batches(count: int, seed: int) -> dict[int, float]:
    """Losses that differ far more between batches than between variants."""
    rng = random.Random(seed)
    return {step: 2 + rng.gauss(0, 0.5) for step in range(400, 400 + count)}


def shifted(losses: dict[int, float], by: float, noise: float, seed: int) -> dict[int, float]:
    rng = random.Random(seed)
    return {step: loss + by + rng.gauss(0, noise) for step, loss in losses.items()}


def test_a_difference_far_below_the_noise_of_batches_is_found() -> None:
    best = hard_batches(200, 1)
    found = paired_difference(shifted(best, 0.02, 0.01, 2), best)
    assert found is not None
    assert found.beyond_chance
    assert found.steps == 100
    assert found.mean == pytest.approx(0.02, abs=0.005)


def test_the_interval_misses_no_difference_about_as_often_as_it_says() -> None:
    """Neighbouring steps depend on each other, as the losses of two drifting models do."""
    found = 0
    for seed in range(400):
        rng, gap, losses = random.Random(seed), 0.0, {}
        for step in range(256):
            gap = 0.5 * gap + rng.gauss(0, 1)
            losses[step] = gap
        difference = paired_difference(losses, dict.fromkeys(losses, 0.0))
        assert difference is not None
        found += difference.beyond_chance
    assert found / 400 < 0.1


def test_more_comparisons_widen_the_interval() -> None:
    best = hard_batches(200, 1)
    other = shifted(best, 0.02, 0.01, 2)
    one, many = paired_difference(other, best), paired_difference(other, best, 10)
    assert one is not None
    assert many is not None
    assert many.half_width > 1.3 * one.half_width


def test_too_few_steps_give_no_interval() -> None:
    best = hard_batches(30, 1)
    found = paired_difference(shifted(best, 5.0, 0.0, 2), best)
    assert found is not None
    assert found.half_width == math.inf
    assert not found.beyond_chance


def test_only_common_steps_are_compared() -> None:
    best = hard_batches(100, 1)
    short = {step: loss + 1 for step, loss in best.items() if step < 440}
    found = paired_difference(short, best)
    assert found is not None
    assert found.steps == 20
    assert paired_difference({1: 2.0}, {2: 2.0}) is None


@pytest.mark.parametrize(
    ("share", "freedom", "value"),
    [(0.975, 3, 3.182), (0.975, 7, 2.365), (0.995, 15, 2.947), (0.999, 7, 4.785)],
)
def test_quantiles_are_those_of_the_tables(share: float, freedom: int, value: float) -> None:
    assert t_quantile(share, freedom) == pytest.approx(value, rel=0.01)
