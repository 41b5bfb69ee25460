from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from fttui.engine.protocol.events import StepFinished
from fttui.tui.view_model.history.comparison import ComparedRun, ValuePair, compare_runs
from fttui.tui.view_model.history.surviving import Change, SurvivingTimeline


def timeline(losses: Sequence[float | None], changes: tuple[Change, ...] = ()) -> SurvivingTimeline:
    steps = {n: StepFinished(loss=loss, step_s=0.5) for n, loss in enumerate(losses, 1)}
    evaluated = {} if losses[-1] is None else {len(losses): {"loss": losses[-1]}}
    return SurvivingTimeline(steps, evaluated, changes, 0, ())


def facts(losses: Sequence[float | None], *changes: Change, **settings: str) -> ComparedRun:
    return ComparedRun(settings, timeline(losses, changes), "finished", 100)


def rated(losses: list[float], rate: str) -> ComparedRun:
    return facts(losses, **{"train.lr": rate, "train.batch": "4"})


def test_only_settings_that_differ_are_told_and_names_are_none() -> None:
    one = facts([1.0], name="a", lr="1e-4", steps="9")
    other = facts([1.0], name="b", lr="2e-4", clip="1")
    assert compare_runs(one, other).settings == [
        ValuePair("lr", "1e-4", "2e-4"), ValuePair("steps", "9", "–"), ValuePair("clip", "–", "1"),
    ]  # fmt: skip


def test_what_is_not_recorded_is_not_compared_but_named() -> None:
    found = compare_runs(facts([1.0]), facts([1.0], lr="1e-4"))
    assert (found.settings, found.settings_missing) == ([], ["A"])
    assert (found.stack, found.stack_missing) == ([], ["A", "B"])


def test_interventions_of_both_are_counted_and_those_of_one_are_listed() -> None:
    same, mine, theirs = Change(3, "clip off"), Change(4, "skip 2"), Change(5, "skip 2")
    found = compare_runs(facts([1.0], same, mine), facts([1.0], same, theirs))
    assert (found.both, found.only_one, found.only_other) == (
        1, ["step 4: skip 2"], ["step 5: skip 2"],
    )  # fmt: skip


def test_runs_whose_scripts_report_no_loss_are_not_called_equal() -> None:
    found = compare_runs(facts([None, None]), facts([None, None])).losses
    assert (found.equal, found.common_steps) == (False, 0)
    found = compare_runs(facts([None, 1.0, 2.0]), facts([None, 1.0, None])).losses
    assert (found.common_steps, found.first_different) == (2, 3)


def test_equal_losses_are_equal_also_where_they_are_nan() -> None:
    losses = [2.0, float("nan"), 1.5]
    found = compare_runs(facts(losses), facts([*losses, 1.0])).losses
    assert found.equal
    assert found.common_steps == 3


def test_the_first_step_that_differs_is_named_and_the_gap_is_paired() -> None:
    rng = random.Random(0)
    mine = [2 + rng.gauss(0, 0.5) for _ in range(100)]
    theirs = [loss + 0.1 + rng.gauss(0, 0.01) if n > 9 else loss for n, loss in enumerate(mine)]
    found = compare_runs(rated(mine, "1e-4"), rated(theirs, "2e-4")).losses
    assert not found.equal
    assert found.first_different == 11
    assert found.mean_gap is not None
    assert found.half_width is not None
    assert abs(found.mean_gap - 0.1) < found.half_width < 0.05


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"train.batch": "8"}, "train.batch"),
        ({"data.train": "b.jsonl"}, "data.train"),
        ({"preference.beta": "0.3"}, "preference.beta"),
        ({}, "settings that are not recorded"),
    ],
)
def test_losses_on_other_batches_have_no_interval(change: dict[str, str], why: str) -> None:
    mine, theirs = ([2 + n % 7 + gap for n in range(100)] for gap in (0.0, 0.1))
    same = {"train.batch": "4", "data.train": "a.jsonl", "preference.beta": "0.1"}
    other = facts(theirs, **{**same, **change} if change else {})
    found = compare_runs(facts(mine, **same), other).losses
    assert found.half_width is None
    assert found.unpaired == why
    assert found.mean_gap == pytest.approx(0.1)


def test_other_content_and_data_skipped_in_one_run_leave_no_pairs() -> None:
    losses = [2.0 + n for n in range(40)]
    skipped = facts([loss + 1 for loss in losses], Change(3, "skip 2"), a="1")
    found = compare_runs(facts(losses, a="1"), skipped, ["data: changed"]).losses
    assert found.unpaired == "data: changed, step 3: skip 2"


def test_runs_without_common_steps_are_not_equal() -> None:
    found = compare_runs(
        facts([1.0]), ComparedRun({}, SurvivingTimeline({}, {}, (), 0, ()), "failed")
    )
    assert not found.losses.equal
    assert ValuePair("steps", "1 of 100", "0") in found.outcome
    assert ValuePair("best eval.loss", "1 at step 1", "–") in found.outcome
