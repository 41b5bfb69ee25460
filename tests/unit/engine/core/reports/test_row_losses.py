from __future__ import annotations

import math
from typing import Any

import pytest

from fttui.engine.core.reports.row_losses import (
    BATCH,
    CURRENT,
    ONE_RECORD,
    PREVIOUS,
    ROWS,
    UNCLEAR,
    WEIGHTS,
    Rise,
    Row,
    RowEvidence,
    weigh,
)

USUAL = [3.9, 4.1, 4.4, 4.6, 4.0, 4.2, 4.5, 4.3]
"""Losses of the rows of a usual step, mean 4.25."""


def rows(losses: list[float], batch: str = CURRENT, **more: Any) -> list[Row]:
    return [
        Row(**{"rank": 0, "id": f"{batch}{n}", "batch": batch, "loss": loss, **more})
        for n, loss in enumerate(losses)
    ]


def judged(
    now: list[float], before: list[float] | None = None, *, level: float = 4.25, **more: Any
) -> RowEvidence:
    before = USUAL if before is None else before
    loss = more.pop("loss", sum(now) / len(now))
    rise = Rise(**{"level": level, "loss": loss, "previous_loss": 4.25, **more})
    return weigh([*rows(now), *rows(before, PREVIOUS)], rise)


@pytest.mark.parametrize("odd", [20.0, 11.0, math.nan, math.inf])
@pytest.mark.parametrize("count", [2, 4, 8])
def test_one_odd_record_explains_a_rise(odd: float, count: int) -> None:
    found = judged([*USUAL[: count - 1], odd])
    assert found.origin == ONE_RECORD
    assert found.explained_by == f"current{count - 1}"


@pytest.mark.parametrize("factor", [1.5, 2.0, 5.0])
@pytest.mark.parametrize("count", [2, 4, 8])
def test_a_rise_of_all_rows_is_the_batch_while_the_step_before_is_as_usual(
    factor: float, count: int
) -> None:
    found = judged([loss * factor for loss in USUAL[:count]])
    assert (found.origin, found.explained_by) == (BATCH, "")


@pytest.mark.parametrize("factor", [1.3, 2.0, math.nan])
def test_a_rise_of_the_rows_of_the_step_before_is_damage_to_the_weights(factor: float) -> None:
    """Even if the rows of the alert's own step are high because of a single record."""
    found = judged([*USUAL[:7], 20.0], [loss * factor for loss in USUAL], loss=6.0)
    assert (found.origin, found.explained_by) == (WEIGHTS, "")


@pytest.mark.parametrize("odd", [60.0, 1000.0])
def test_a_huge_spike_hides_no_damage(odd: float) -> None:
    """A part of a huge rise is a large rise of the other rows."""
    worse = [1.5 * loss for loss in USUAL]
    assert judged([*USUAL[:7], odd], worse).origin == WEIGHTS
    assert judged([*worse[:7], odd]).origin == BATCH
    assert judged([*USUAL[:7], odd]).origin == ONE_RECORD


def test_what_the_update_left_of_the_rows_before_is_compared_with_their_own_loss() -> None:
    """A step of hard rows before the alert is no damage."""
    hard = [loss * 1.2 for loss in USUAL]
    found = judged([*USUAL[:7], 20.0], hard, previous_loss=4.25 * 1.2)
    assert found.origin == ONE_RECORD


def test_without_a_step_before_rows_are_compared_among_themselves() -> None:
    assert judged([*USUAL[:7], 20.0], []).origin == ONE_RECORD
    assert judged([2 * loss for loss in USUAL], []).origin == ROWS
    assert judged([20.0], []).origin == ROWS


def test_a_step_of_one_row_is_explained_by_it_if_the_step_before_is_as_usual() -> None:
    assert judged([20.0], [4.2], previous_loss=4.2).origin == ONE_RECORD
    assert judged([20.0], [9.0], previous_loss=4.2).origin == WEIGHTS


def test_rows_that_do_not_show_the_rise_explain_nothing() -> None:
    found = judged(USUAL, loss=9.0)
    assert (found.origin, found.explained_by) == (UNCLEAR, "")
    assert judged(USUAL, loss=math.nan).origin == UNCLEAR


def test_a_norm_is_explained_by_an_odd_row_without_a_rise_of_the_loss() -> None:
    many = USUAL * 8
    found = judged([*many[:-1], 30.0], many, loss=4.25)
    assert found.origin == ONE_RECORD
    assert judged(many, many, loss=4.25).origin == UNCLEAR


@pytest.mark.parametrize(("odd", "origin"), [(4, ONE_RECORD), (6, BATCH)])
def test_of_many_rows_a_sixteenth_may_be_odd(odd: int, origin: str) -> None:
    many = USUAL * 8
    found = judged([*many[:-odd], *([60.0] * odd)], many)
    assert found.origin == origin
    assert len(found.odd) == odd
    names = [f"current{63 - n}" for n in range(odd)][::-1]
    if origin == ONE_RECORD:
        assert found.explained_by == f"{names[0]}, {names[1]}, {names[2]} and 1 more"


def test_a_record_that_is_twice_in_the_step_is_one_record() -> None:
    now = [*rows(USUAL[:6]), *rows([20.0, 20.0], id="twice", place="a.jsonl:3")]
    rise = Rise(level=4.25, loss=8.2, previous_loss=4.25)
    found = weigh([*now, *rows(USUAL, PREVIOUS)], rise)
    assert found.explained_by == "a.jsonl:3"


def test_a_raised_learning_rate_forbids_the_explanation() -> None:
    found = judged([*USUAL[:7], 20.0], lr_raised="lr scale 50 at step 40")
    assert (found.origin, found.explained_by) == (ONE_RECORD, "")
    assert "lr scale 50" in found.blocked


def test_weights_of_rows_count_in_the_mean() -> None:
    """A short odd row cannot have raised the loss of the step."""
    now = [*rows(USUAL[:7], weight=100.0), *rows([12.0], id="short", weight=1.0)]
    rise = Rise(level=4.25, loss=8.0, previous_loss=4.25)
    assert weigh([*now, *rows(USUAL, PREVIOUS)], rise).origin == UNCLEAR


def test_odd_rows_of_one_rank_or_one_file_say_so() -> None:
    now = [
        Row(rank=n % 2, batch=CURRENT, id=str(n), place=f"{'ab'[n % 2]}.jsonl:{n}", loss=loss)
        for n, loss in enumerate([4.0, 9.0, 4.2, 9.5, 4.1, 10.0])
    ]
    rise = Rise(level=4.25, loss=6.8, previous_loss=4.25)
    found = weigh([*now, *rows(USUAL, PREVIOUS)], rise)
    assert (found.origin, found.rank, found.source) == (BATCH, 1, "b.jsonl")
    alone = [row for row in now if row.rank == 1]
    found = weigh([*alone, *rows(USUAL, PREVIOUS)], rise)
    assert (found.rank, found.source) == (None, "")


def test_the_spans_of_both_steps() -> None:
    found = judged([1.0, 2.0, 9.0], [3.0, math.nan])
    assert found.current is not None
    assert found.previous is not None
    assert (found.current.rows, found.current.lowest, found.current.highest) == (3, 1.0, 9.0)
    assert (found.current.median, found.current.mean) == (2.0, 4.0)
    assert (found.previous.lowest, found.previous.highest) == (3.0, math.inf)


def test_without_rows_nothing_is_said() -> None:
    assert weigh([], Rise(level=1.0, loss=2.0)) == RowEvidence()


@pytest.mark.parametrize("scale", [1e-4, 1.0, 50.0])
def test_the_unit_of_the_loss_does_not_matter(scale: float) -> None:
    usual = [scale * loss for loss in USUAL]
    level = {"level": 4.25 * scale, "previous_loss": 4.25 * scale}
    assert judged([*usual[:7], 20.0 * scale], usual, **level).origin == ONE_RECORD
    assert judged([2.0 * loss for loss in usual], usual, **level).origin == BATCH
    assert judged(usual, [2.0 * loss for loss in usual], loss=9 * scale, **level).origin == WEIGHTS
