"""Runs of a comparison: best first, told apart by signs, and which of them are drawn in colour."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fttui.tui.text.glyphs import to_ascii
from fttui.tui.view_model.history.ranking import (
    COLOURED,
    MOST_RUNS,
    Candidate,
    RankedRun,
    RunPicks,
    ranked_by,
    ranking,
    varying,
)
from fttui.tui.view_model.reducer import apply_many
from fttui.tui.view_model.run_view import RunView
from tests.support.session_double import Script

SHORT = apply_many(RunView(), Script().start().run().train(40).records)
LONG = apply_many(RunView(), Script().start().run().train(900).records)


def candidates(count: int) -> list[Candidate]:
    return [
        Candidate(f"r{n:02d}", LONG if n == 3 else SHORT, {"train.lr": f"{n}e-5", "name": f"n{n}"})
        for n in range(count)
    ]


def ids(found: list[RankedRun], **flags: bool) -> list[str]:
    return [one.id for one in found if all(getattr(one, k) == v for k, v in flags.items())]


def test_the_best_run_is_first_and_every_sign_is_used_once() -> None:
    found = ranking(candidates(MOST_RUNS), RunPicks())
    assert found[0].id == "r03"
    assert [one.place for one in found] == list(range(MOST_RUNS))
    assert len({one.sign for one in found}) == MOST_RUNS
    assert found[0].colour == found[4].colour
    assert len({to_ascii(one.sign) for one in found}) == MOST_RUNS
    assert ids(found, coloured=True) == [one.id for one in found[:COLOURED]]


def test_runs_without_a_value_are_last() -> None:
    empty = replace(candidates(1)[0], id="empty", run=RunView())
    found = ranking([empty, *candidates(2)], RunPicks())
    assert (found[-1].id, found[-1].value) == ("empty", None)
    assert ranked_by([RunView(), SHORT]) == "loss~0.98"


def test_a_filter_and_picks_decide_what_is_drawn() -> None:
    runs = [*candidates(20), Candidate("own", SHORT, {}, own=True)]
    found = ranking(runs, RunPicks(words="LR 1", hidden=frozenset({"r10"})))
    shown = ids(found, hidden=False)
    assert set(shown) == {"r01", *(f"r{n}" for n in range(11, 20))}  # 10 is hidden by hand
    assert ids(found, hidden=False, coloured=True) == shown[:COLOURED]
    last = found[-2].id
    picked = ranking(runs, RunPicks(picked=frozenset({last})))
    assert last in ids(picked, coloured=True)
    assert "own" in ids(picked, coloured=True)


def test_a_run_goes_from_grey_to_colour_to_hidden_and_back() -> None:
    picks = RunPicks().toggled("a", coloured=False)
    assert picks.picked == {"a"}
    picks = picks.toggled("a", coloured=True)
    assert picks == RunPicks(hidden=frozenset({"a"}))
    assert picks.toggled("a", coloured=False) == RunPicks()


@pytest.mark.parametrize(
    ("settings", "keys"),
    [
        ([{"name": "a", "lr": "1"}, {"name": "b", "lr": "2"}], ["lr"]),
        ([{"lr": "1"}, {"lr": "1"}], []),
        ([{"lr": "1"}, {}], []),  # nothing is known of the other
        ([{"lr": "1"}, {"lr": "1", "r": "8"}], ["r"]),
    ],
)
def test_the_settings_that_differ_are_shown(
    settings: list[dict[str, str]], keys: list[str]
) -> None:
    assert varying(settings) == keys
