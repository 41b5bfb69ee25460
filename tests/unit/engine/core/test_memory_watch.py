from __future__ import annotations

from fttui.engine.core.memory_watch import MemoryPlanCheck

GIB = 2**30


def test_a_peak_above_the_plan_is_said_with_both_figures_and_what_to_do() -> None:
    said = MemoryPlanCheck(4 * GIB, "reserved").over(5 * GIB)
    assert said is not None
    assert "5.00 GiB reserved, 25% more than the 4.00 GiB planned" in said
    assert "train.activation_checkpointing: true" in said


def test_what_is_within_the_estimate_s_error_is_not_said() -> None:
    watch = MemoryPlanCheck(100, "allocated")
    assert watch.over(105) is None
    assert watch.over(106) is not None


def test_it_is_said_again_only_when_it_grows() -> None:
    watch = MemoryPlanCheck(100, "allocated")
    assert [bool(watch.over(used)) for used in (120, 120, 125, 127, 90, 127)] == [
        True, False, False, True, False, False,
    ]  # fmt: skip


def test_a_trial_corrects_the_plan_upwards_and_its_measure() -> None:
    watch = MemoryPlanCheck(100, "allocated")
    watch.correct(90, "allocated")
    assert watch.planned_bytes == 100
    watch.correct(150, "allocated")
    assert watch.over(157) is None
    assert watch.over(158) is not None
    watch.correct(120, "reserved")
    assert (watch.planned_bytes, watch.measure) == (120, "reserved")
