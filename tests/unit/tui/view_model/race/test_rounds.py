from __future__ import annotations

import pytest

from fttui.engine.protocol.usage.amounts import Usage
from fttui.tui.view_model.race.rounds import (
    MeasuredTimes,
    Round,
    cost_of,
    cost_side_by_side,
    plan_rounds,
    steps_of,
)


def test_the_better_half_goes_on_and_each_round_is_as_long_as_all_before_it() -> None:
    assert plan_rounds(6, 160) == (Round(40, 6, 3), Round(80, 3, 2), Round(160, 2, 1))


@pytest.mark.parametrize("steps", [1, 10, 39])
def test_a_short_race_has_one_round(steps: int) -> None:
    assert plan_rounds(8, steps) == (Round(steps, 8, 1),)


def test_without_halving_and_with_two_variants_there_is_one_round() -> None:
    assert plan_rounds(8, 400, halving=False) == (Round(400, 8, 1),)
    assert plan_rounds(2, 400) == (Round(400, 2, 1),)


@pytest.mark.parametrize("variants", range(2, 65))
def test_at_least_two_variants_are_compared_in_the_last_round(variants: int) -> None:
    rounds = plan_rounds(variants, 10_000)
    assert rounds[-1].entrants == 2
    assert [one.keep for one in rounds[:-1]] == [one.entrants for one in rounds[1:]]
    assert rounds[-1].steps == 10_000


def test_halving_costs_the_steps_of_those_that_are_left() -> None:
    assert steps_of(plan_rounds(6, 160)) == 6 * 40 + 3 * 40 + 2 * 80
    assert steps_of(plan_rounds(6, 160, halving=False)) == 6 * 160


def test_the_cost_is_made_of_what_was_measured() -> None:
    rounds = plan_rounds(2, 100)
    times = MeasuredTimes(step_s=0.5, evaluation_s=3.0, checkpoint_s=1.0, checkpoint_bytes=10)
    assert cost_of(rounds, times, evaluates=True).seconds == 200 * 0.5 + 2 * (3 + 2)
    assert cost_of(rounds, times, evaluates=False).seconds == 200 * 0.5 + 2 * 2
    assert cost_of(rounds, times, evaluates=False).bytes == 30


def test_side_by_side_costs_less_time_and_the_second_training_of_the_best() -> None:
    rounds = plan_rounds(4, 80)  # 4 to step 40, 2 to step 80
    per_s = Usage(seconds=1.0, device_s=1.0)
    times = MeasuredTimes(0.5, 3.0, 1.0, 10, start_s=8.0, use_per_s=per_s)
    found = cost_side_by_side(rounds, times, 2, 2, evaluates=True, started=False)
    assert found.steps == 4 * 40 + 2 * 40 + 80
    assert found.seconds == 8 + 2 * 25 + 25 + 45  # loading, two pairs, one pair, once more
    assert found.used == per_s.scaled(2 * 8 + 4 * 25 + 2 * 25 + 45)
    assert found.checkpoints == 2
    alone = cost_of(rounds, times, evaluates=True)
    assert alone.seconds is not None
    assert found.seconds < alone.seconds
    on_cpu = cost_side_by_side(rounds, times, 2, 1, evaluates=True, started=True)
    assert on_cpu.seconds == 8 + 4 * 25 + 2 * 25 + 8 + 45


def test_nothing_is_claimed_about_what_was_not_measured() -> None:
    found = cost_of(plan_rounds(2, 100), MeasuredTimes(), evaluates=True)
    assert (found.steps, found.seconds, found.bytes) == (200, None, None)
