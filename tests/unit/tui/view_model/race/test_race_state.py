from __future__ import annotations

import msgspec
import pytest

from fttui.tui.view_model.race.race_state import RaceState, VariantState, score_of


def race(by: str, *scores: float | None, steps: int = 40) -> RaceState:
    """A race after its first round."""
    values = ",".join(f"{n}e-4" for n in range(1, len(scores) + 1))
    state = RaceState(words=[f"lr={values}"], steps=steps, by=by)
    state.variants = [VariantState(rounds=1, score=score, step=20) for score in scores]
    return state


@pytest.mark.parametrize(
    ("by", "first"), [("eval.loss", 1), ("loss", 1), ("eval.perplexity", 1), ("eval.top1", 3)]
)
def test_the_better_half_of_a_round_goes_on(by: str, first: int) -> None:
    state = race(by, 2.2, 2.0, 2.1, 2.4)
    assert state.close_round(0)[0] == first
    assert sum(one.takes_part for one in state.variants) == 2
    assert state.best == first


def test_a_variant_without_a_finite_score_is_last_whatever_is_better() -> None:
    for by in ("eval.loss", "eval.top1"):
        state = race(by, None, 2.0, 2.1, 2.2)
        assert state.ranking[-1] == 0
        state.close_round(0)
        assert state.variants[0].beaten


def test_a_variant_that_failed_trains_no_more_and_never_wins() -> None:
    state = race("eval.loss", 2.2, 2.0, 2.1)
    state.variants[1].failed = "halted after step 12: nan"
    state.close_round(0)
    assert 1 not in state.waiting(1)
    assert state.best == 2
    assert state.ranking == [2, 0, 1]


def test_who_trained_longer_is_ranked_before_who_left() -> None:
    state = race("eval.loss", 2.2, 2.0, 2.1, 2.4)
    state.close_round(0)
    for n in state.waiting(1):
        state.variants[n].rounds, state.variants[n].score = 2, 9.0
    assert set(state.ranking[:2]) == {1, 2}


def test_nobody_is_best_without_a_score() -> None:
    assert race("eval.loss", None, None).best is None


def test_a_race_is_read_back_as_it_was_stored() -> None:
    state = race("eval.loss", 2.2, None)
    state.variants[0].losses = {401: 2.5, 402: 2.25}
    assert msgspec.json.decode(msgspec.json.encode(state), type=RaceState) == state


def test_a_score_is_a_metric_or_the_mean_loss_of_the_second_half() -> None:
    losses = {1: 9.0, 2: 9.0, 3: 2.0, 4: 4.0}
    assert score_of("loss", losses, {"loss": 7.0}) == 3.0
    assert score_of("eval.loss", losses, {"loss": 7.0}) == 7.0
    assert score_of("eval.top1", losses, {"loss": 7.0}) is None
    assert score_of("eval.loss", losses, {"loss": float("inf")}) is None
