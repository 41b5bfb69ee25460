from __future__ import annotations

import math

import msgspec
import pytest

from fttui.engine.core.guard import (
    HISTORY_STEPS,
    MAX_ROLLBACKS,
    Guard,
    GuardDecision,
    UpdateVerdict,
)


def test_a_finite_update_passes_without_a_word() -> None:
    assert Guard().judge(1, 2.0, 0.5, "skip").verdict is UpdateVerdict.APPLY
    assert Guard().judge(1, 2.0, None, "halt").verdict is UpdateVerdict.APPLY


@pytest.mark.parametrize(
    ("loss", "norm"), [(math.nan, 1.0), (math.inf, 1.0), (1.0, math.nan), (1.0, math.inf)]
)
@pytest.mark.parametrize("policy", ["skip", "halt", "rollback"])
def test_nothing_that_is_not_finite_is_ever_applied(loss: float, norm: float, policy: str) -> None:
    decision = Guard().judge(7, loss, norm, policy)
    assert decision.verdict is UpdateVerdict(policy)
    assert "step 7" in decision.reason


def test_the_reason_says_which_number_is_bad() -> None:
    assert "loss is NaN" in Guard().judge(1, math.nan, math.nan, "halt").reason
    assert "gradient norm is ∞" in Guard().judge(1, 1.0, math.inf, "halt").reason


def test_the_budget_is_what_may_be_skipped() -> None:
    guard = Guard(budget=2)
    verdicts = [guard.judge(step, math.nan, 1.0, "skip").verdict for step in (1, 2, 3)]
    assert verdicts == [UpdateVerdict.SKIP, UpdateVerdict.SKIP, UpdateVerdict.HALT]


def test_old_skips_do_not_count() -> None:
    guard = Guard(budget=1)
    assert guard.judge(1, math.nan, 1.0, "skip").verdict is UpdateVerdict.SKIP
    assert guard.judge(1 + HISTORY_STEPS, math.nan, 1.0, "skip").verdict is UpdateVerdict.SKIP
    assert guard.judge(2 + HISTORY_STEPS, math.nan, 1.0, "skip").verdict is UpdateVerdict.HALT


def test_rolling_back_in_circles_ends_in_a_halt() -> None:
    saved = Guard()
    guard = Guard()
    for _ in range(MAX_ROLLBACKS):
        assert guard.judge(5, math.nan, 1.0, "rollback").verdict is UpdateVerdict.ROLLBACK
        guard = guard.rewound(saved)
    assert guard.judge(5, math.nan, 1.0, "rollback").verdict is UpdateVerdict.HALT


@pytest.mark.parametrize("policy", ["skip", "halt", "rollback"])
def test_the_newest_refused_step_is_known_under_every_policy(policy: str) -> None:
    guard = Guard()
    guard.judge(7, math.nan, 1.0, policy)
    guard.judge(8, 1.0, 1.0, policy)
    assert guard.refused_at == 7
    assert Guard().rewound(guard).refused_at == 7
    assert guard.rewound(Guard()).refused_at == 0


def test_a_guard_saved_without_its_refused_step_takes_the_last_skip() -> None:
    assert Guard().rewound(Guard(skipped_at=[3, 5])).refused_at == 5


def test_a_rewound_guard_has_the_skips_of_then() -> None:
    guard = Guard(budget=1)
    saved = msgspec.convert(msgspec.to_builtins(guard), Guard)
    guard.judge(5, math.nan, 1.0, "skip")
    assert guard.rewound(saved).judge(5, math.nan, 1.0, "skip").verdict is UpdateVerdict.SKIP


@pytest.mark.parametrize("policy", ["skip", "halt", "rollback"])
def test_updates_that_cannot_be_refused_are_not_said_to_be(policy: str) -> None:
    guard = Guard(refuses=False)
    assert guard.judge(3, math.nan, math.inf, policy) == GuardDecision(UpdateVerdict.APPLY)
    assert guard.refused_at == 0
    assert not guard.rewound(Guard()).refuses
