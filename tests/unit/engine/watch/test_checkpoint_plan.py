from __future__ import annotations

from fttui.engine.watch.checkpoint_plan import plan_checkpoints


def test_small_checkpoints_are_written_every_fifty_steps() -> None:
    plan = plan_checkpoints(40_000_000, 10_000_000, 10**12, 3, None)
    assert (plan.every, plan.at_start) == (100, True)
    assert plan_checkpoints(4_000, 1_000, 10**12, 3, None).every == 50
    assert "120 MB" in plan.fact


def test_a_full_disk_leaves_them_to_commands() -> None:
    plan = plan_checkpoints(28 * 10**9, 7 * 10**9, 500 * 10**9, 3, None)
    assert (plan.every, plan.at_start) == (0, False)
    assert "on command only: 5 of them, 84 GB each, would take 420 GB" in plan.fact


def test_what_the_user_asks_for_is_taken() -> None:
    plan = plan_checkpoints(28 * 10**9, 7 * 10**9, 500 * 10**9, 3, 7)
    assert (plan.every, plan.at_start) == (7, True)
