"""The borders of the detectors of runs that make no progress."""

from __future__ import annotations

import pytest

from fttui.engine.core.anomaly.instability import COLLAPSE_UNITS, ZERO_RECORDS, Instability
from fttui.engine.core.anomaly.progress import (
    DEAD_RECORDS,
    LAST_RECORDS,
    NO_LEARNING_LOSS,
    Dead,
    NoLearning,
)


@pytest.mark.parametrize(("loss", "told"), [(NO_LEARNING_LOSS, True), (3.999, False)])
def test_a_flat_loss_counts_from_four_nats_on(loss: float, told: bool) -> None:
    check = NoLearning()
    found = [check.update(loss) for _ in range(LAST_RECORDS + 3)]
    assert [level for level in found if level is not None] == ([loss] if told else [])
    assert (found[LAST_RECORDS - 1] is not None) == told


@pytest.mark.parametrize(("share", "told"), [(0.99, True), (0.985, False)])
def test_a_loss_that_fell_by_more_than_a_seventieth_was_learned(share: float, told: bool) -> None:
    check = NoLearning()
    found = [check.update(8.0) for _ in range(10)]
    found += [check.update(8.0 * share) for _ in range(LAST_RECORDS)]
    assert any(level is not None for level in found) == told


def test_no_gradient_counts_after_five_records_and_then_twice_the_longest_stretch() -> None:
    dead = Dead()
    for _ in range(100):
        assert not dead.update(1.0, 1.0, 1.0)
    assert [dead.update(1.0, 0.0, 1.0) for _ in range(6)] == [False] * 4 + [True, False]
    assert not dead.update(1.0, 1.0, 1.0)
    assert dead.longest == 6
    assert [dead.update(1.0, 0.0, 1.0) for _ in range(12)] == [False] * 11 + [True]
    assert DEAD_RECORDS == 5


@pytest.mark.parametrize(("level", "found"), [(1.0, False), (1.001, True)])
def test_a_loss_of_zero_is_a_collapse_only_from_far_above(
    monkeypatch: pytest.MonkeyPatch, level: float, found: bool
) -> None:
    state = Instability()
    state.scale.unit = 1.0
    monkeypatch.setattr(Instability, "loss_level", lambda _: level * COLLAPSE_UNITS)
    found_at = [state._collapse(0.0) is not None for _ in range(ZERO_RECORDS)]
    assert found_at == [False] * (ZERO_RECORDS - 1) + [found]


def test_a_norm_that_is_always_zero_is_none_while_the_loss_moves() -> None:
    dead = Dead()
    assert not any(dead.update(1.0 - n / 100, 0.0, None) for n in range(40))
    still = Dead()
    assert any(still.update(1.0, 0.0, None) for _ in range(40))


def test_losses_that_are_often_zero_make_a_stretch_of_them_no_news() -> None:
    dead = Dead()
    found = [dead.update(0.0 if n % 10 < 6 else 0.1, 0.5, 0.5) for n in range(200)]
    assert not any(found)
    assert any(dead.update(0.0, 0.5, 0.5) for _ in range(40))
