from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fttui.engine.core.anomaly import Alert
from fttui.engine.core.autopilot import Autopilot, calls_at_once
from fttui.engine.core.recovery import (
    Detour,
    NoWayBack,
    RecoveryAttempt,
    RecoveryContext,
    RecoveryForecast,
    RecoveryHistory,
    anomaly_named,
    incident,
    plan_recovery,
)
from fttui.engine.protocol.commands import Rollback
from fttui.engine.run.checkpoint_store import Manifest

NOW = RecoveryContext(step=130, timeline=1, lr_scale=1.0, clip=1.0, norm_high=0.8)


def signal(
    step: int, kind: str = "divergence", severity: str = "alarm", incident: str = "one"
) -> Alert:
    name = f"{kind}-{step}"
    return Alert(id=name, kind=kind, severity=severity, step=step, headline="", incident=incident)


def manifest(step: int, *, good: bool = True) -> Manifest:
    return Manifest(
        name=f"step-{step:06}", step=step, timeline=1, time=0, world_size=1, incarnation=1,
        files={}, good=good,
    )  # fmt: skip


SAVED = [manifest(60), manifest(80), manifest(100), manifest(120, good=False)]


def test_it_goes_back_to_before_the_first_sign_past_the_data_at_half_the_rate() -> None:
    alerts = [signal(95, "grad_explosion", "watch"), signal(125)]
    attempt = plan_recovery(alerts[-1], alerts, SAVED, RecoveryHistory(), NOW)
    assert attempt.describe() == "rollback step-000080 lr=0.5 clip=0.8 skip=65"


def test_what_threatens_the_weights_belongs_to_the_incident_it_was_raised_in() -> None:
    alerts = [
        signal(10),
        signal(70, severity="watch"),
        signal(80, incident="another"),
        signal(110, severity="info"),
        signal(112),
        signal(120),
    ]
    assert [a.step for a in incident(alerts, alerts[4])] == [10, 70, 112]


def test_an_incident_that_is_over_does_not_pass_over_the_checkpoints_after_it() -> None:
    alerts = [signal(85, "grad_explosion", incident="over"), signal(125)]
    assert plan_recovery(alerts[-1], alerts, SAVED, RecoveryHistory(), NOW).step == 100


def test_alerts_whose_incident_is_unknown_belong_to_none() -> None:
    alerts = [signal(100, incident=""), signal(105, incident="")]
    assert incident(alerts, alerts[1]) == [alerts[1]]


def test_a_clip_that_bites_already_is_halved() -> None:
    tight = msgspec.structs.replace(NOW, clip=0.2)
    assert plan_recovery(signal(125), [], SAVED, RecoveryHistory(), tight).clip == 0.1
    unknown = msgspec.structs.replace(NOW, clip=None, norm_high=None)
    assert plan_recovery(signal(125), [], SAVED, RecoveryHistory(), unknown).clip is None


def test_a_rate_raised_since_the_checkpoint_is_not_kept() -> None:
    raised = msgspec.structs.replace(NOW, lr_scale=50.0, lr_scales={"step-000100": 1.0})
    assert plan_recovery(signal(125), [], SAVED, RecoveryHistory(), raised).lr_scale == 0.5


def saved_at(**scales: float) -> RecoveryContext:
    named = {f"step-{name.removeprefix('at_'):0>6}": scale for name, scale in scales.items()}
    return msgspec.structs.replace(NOW, lr_scale=45.0, lr_scales=named)


def test_a_checkpoint_written_after_the_rate_was_raised_is_passed_over() -> None:
    raised = saved_at(at_60=0.9, at_80=0.9, at_100=45.0)
    attempt = plan_recovery(signal(104), [], SAVED, RecoveryHistory(), raised)
    assert (attempt.checkpoint, attempt.lr_scale) == ("step-000080", 0.45)
    often = [manifest(step) for step in (90, 95, 100)]
    dense = saved_at(at_90=1.0, at_95=45.0, at_100=45.0)
    assert plan_recovery(signal(104), [], often, RecoveryHistory(), dense).step == 90


@pytest.mark.parametrize(
    "scales",
    [
        {"at_80": 1.0, "at_100": 1.2},  # hardly raised
        {"at_80": 2.0, "at_100": 1.0},  # lowered
        {"at_100": 45.0},  # an old checkpoint, whose scale is unknown
    ],
)
def test_no_work_is_given_up_without_a_raised_rate(scales: dict[str, float]) -> None:
    assert plan_recovery(signal(104), [], SAVED, RecoveryHistory(), saved_at(**scales)).step == 100


def test_a_rate_that_has_held_for_long_is_not_taken_back() -> None:
    long_ago = saved_at(at_60=1.0, at_80=45.0, at_100=45.0)
    assert plan_recovery(signal(125), [], SAVED, RecoveryHistory(), long_ago).step == 100


def after(*attempts: RecoveryAttempt) -> RecoveryHistory:
    past = RecoveryHistory()
    for attempt in attempts:
        past.went_back(attempt.step, attempt.skip)
        past.begin(attempt, 50)
    return past


def test_what_failed_is_not_repeated_and_the_third_time_is_refused() -> None:
    first = plan_recovery(signal(105), [], SAVED, RecoveryHistory(), NOW)
    assert (first.checkpoint, first.lr_scale) == ("step-000100", 0.5)
    halved = msgspec.structs.replace(NOW, lr_scale=0.5, clip=0.8)
    second = plan_recovery(signal(103), [], SAVED, after(first), halved)
    assert (second.checkpoint, second.lr_scale) == ("step-000080", 0.25)
    with pytest.raises(NoWayBack, match="did not help"):
        plan_recovery(signal(90), [], SAVED, after(first, second), halved)


def test_the_only_checkpoint_is_used_again_only_with_another_change() -> None:
    first = plan_recovery(signal(65), [], SAVED[:1], RecoveryHistory(), NOW)
    halved = msgspec.structs.replace(NOW, lr_scale=0.5, clip=0.8)
    second = plan_recovery(signal(66), [], SAVED[:1], after(first), halved)
    assert second.checkpoint == first.checkpoint
    assert (second.lr_scale, second.clip) == (0.25, 0.4)


@given(
    steps=st.lists(st.integers(1, 12).map(lambda n: 10 * n), min_size=1, max_size=6, unique=True),
    settings=st.lists(
        st.tuples(
            st.floats(0.1, 50), st.none() | st.floats(0.1, 10), st.none() | st.floats(0.1, 5)
        ),
        min_size=1,
        max_size=3,
    ),
)
def test_it_never_goes_twice_to_one_checkpoint_without_a_lower_rate(
    steps: list[int], settings: list[tuple[float, float | None, float | None]]
) -> None:
    past, saved = RecoveryHistory(), [manifest(step) for step in sorted(steps)]
    for lr_scale, clip, high in settings:
        # Whatever a person has set meanwhile, back to what failed included.
        now = msgspec.structs.replace(NOW, lr_scale=lr_scale, clip=clip, norm_high=high)
        try:
            attempt = plan_recovery(signal(125), [], saved, past, now)
        except NoWayBack:
            assert len(past.attempts) == 2
            return
        tried = [a.lr_scale for a in past.attempts if a.checkpoint == attempt.checkpoint]
        assert all(attempt.lr_scale <= 0.5 * rate for rate in tried)
        assert attempt.lr_scale <= 0.5 * lr_scale
        past.went_back(attempt.step, attempt.skip)
        past.begin(attempt, 50)


def test_data_left_out_before_stay_left_out() -> None:
    first = plan_recovery(signal(105), [], SAVED, RecoveryHistory(), NOW)
    assert first.skip == 5 + 20
    again = plan_recovery(signal(103), [], SAVED[2:3], after(first), NOW)
    assert again.skip == first.skip + 3 + 80


def test_updates_refused_after_the_first_are_passed_too() -> None:
    bad = msgspec.structs.replace(NOW, refused_at=110)
    assert (
        plan_recovery(signal(105, "nonfinite"), [], SAVED, RecoveryHistory(), bad).skip == 10 + 20
    )


def test_without_a_good_checkpoint_it_says_so() -> None:
    with pytest.raises(NoWayBack, match="no good checkpoint before step 50"):
        plan_recovery(signal(50), [], SAVED, RecoveryHistory(), NOW)


def test_another_rollback_ends_a_probation() -> None:
    past = after(plan_recovery(signal(105), [], SAVED, RecoveryHistory(), NOW))
    under_way = past.probation
    assert under_way is not None
    past.went_back(60, 0)
    assert past.probation is None
    assert past.detours == []


def test_the_autopilot_keeps_to_budget_and_cool_down() -> None:
    autopilot = Autopilot(budget=2, cooldown=3)
    assert autopilot.decide("propose", "x").verdict == "propose"
    assert autopilot.decide("act", "x").verdict == "act"
    assert "waits 3 more steps" in autopilot.decide("act", "x").reason
    for _ in range(3):
        autopilot.step()
    assert autopilot.decide("act", "x").verdict == "act"
    for _ in range(9):
        autopilot.step()
    last = autopilot.decide("act", "x")
    assert (last.verdict, last.budget_left) == ("wait", 0)
    assert "budget of 2" in last.reason


def test_only_what_does_not_come_back_by_itself_calls_at_once() -> None:
    assert calls_at_once(signal(5))
    assert not calls_at_once(signal(5, "spike"))


def test_without_a_name_the_newest_instability_that_is_more_than_info_is_meant() -> None:
    alerts = [signal(5), signal(9, "grad_explosion", "watch"), signal(12, "nonfinite", "info")]
    assert anomaly_named([*alerts, signal(14, "collapse")], "").id == "grad_explosion-9"
    twice = [signal(9, "spike"), signal(9, "grad_explosion")]
    assert anomaly_named(twice, "").id == "grad_explosion-9"
    with pytest.raises(NoWayBack, match="no instability on this timeline"):
        anomaly_named([signal(12, "nonfinite", "info"), signal(14, "collapse")], "")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("nonfinite-12", "nonfinite-12"),  # also an info, and also a collapse: reports name them
        ("collapse-14", "collapse-14"),
        ("divergence-5-t2", "divergence-5"),  # as it is announced on timeline 2
    ],
)
def test_every_alert_whose_report_recommends_recover_can_be_named(name: str, found: str) -> None:
    alerts = [signal(5), signal(12, "nonfinite", "info"), signal(14, "collapse")]
    assert anomaly_named(alerts, name).id == found


def test_an_id_of_an_earlier_timeline_does_not_mean_an_open_alert_of_this_one() -> None:
    alerts, announced = [signal(5)], {"divergence-5": "divergence-5-t3"}
    assert anomaly_named(alerts, "divergence-5-t3", announced).id == "divergence-5"
    assert anomaly_named(alerts, "divergence-5", announced).id == "divergence-5"
    with pytest.raises(NoWayBack, match="divergence-5-t2"):
        anomaly_named(alerts, "divergence-5-t2", announced)


@pytest.mark.parametrize("name", ["divergence-6", "plateau-7", "divergence-5-x2"])
def test_a_name_that_means_no_such_alert_is_refused(name: str) -> None:
    alerts = [signal(5), signal(7, "plateau", "info")]
    with pytest.raises(NoWayBack, match=f"no anomaly '{name}' on this timeline"):
        anomaly_named(alerts, name)


@pytest.mark.parametrize(
    ("clip", "high", "tighter"),
    [
        (None, 0.8, 0.8),
        (1.0, 0.8, 0.8),
        (0.8, 0.8, 0.4),
        (0.6, 0.8, 0.3),
        (1.0, None, 0.5),
        (1.0, 0.0, 0.5),
        (1.0, float("inf"), 0.5),
        (None, float("inf"), None),
    ],
)
def test_the_clip_always_gets_tighter(
    clip: float | None, high: float | None, tighter: float | None
) -> None:
    now = msgspec.structs.replace(NOW, clip=clip, norm_high=high)
    assert plan_recovery(signal(125), [], SAVED, RecoveryHistory(), now).clip == tighter


@pytest.mark.parametrize(
    ("refused_at", "skip"), [(104, 25), (105, 25), (155, 75), (156, 25), (0, 25)]
)
def test_refused_updates_count_for_fifty_steps(refused_at: int, skip: int) -> None:
    now = msgspec.structs.replace(NOW, refused_at=refused_at)
    assert plan_recovery(signal(105), [], SAVED, RecoveryHistory(), now).skip == skip


@pytest.mark.parametrize(("step", "skip"), [(579, 499), (580, 500), (581, 500), (5000, 500)])
def test_no_more_than_five_hundred_steps_are_skipped(step: int, skip: int) -> None:
    saved = [manifest(100)]
    assert plan_recovery(signal(step), [], saved, RecoveryHistory(), NOW).skip == skip


def test_batches_passed_over_are_those_of_detours_before_a_step() -> None:
    past = RecoveryHistory()
    past.went_back(10, 5)
    past.went_back(20, 7)
    assert [past.passed_over(step) for step in (9, 10, 19, 20)] == [0, 5, 5, 12]
    assert [past.passed_over(step, saved=True) for step in (10, 11, 20, 21)] == [0, 5, 5, 12]
    past.went_back(20, 0)
    assert past.passed_over(99) == 5, "the later detour was undone"


def test_a_probation_counts_from_its_checkpoint_and_ends_with_its_incident() -> None:
    attempt = plan_recovery(signal(105), [], SAVED, RecoveryHistory(), NOW)
    past = RecoveryHistory()
    past.begin(attempt, 50)
    assert past.probation is not None
    assert (past.probation.steps, past.probation.until_step) == (50, 150)
    past.went_back(100, 3)
    assert past.probation is not None, "the rollback of the recovery itself"
    past.over()
    assert past == RecoveryHistory(detours=[Detour(100, 3)])


def test_an_attempt_is_typed_as_its_rollback() -> None:
    whole = RecoveryAttempt(
        anomaly="a", checkpoint="step-000100", step=100, lr_scale=0.123456, clip=2.34567, skip=3
    )
    assert whole.describe() == "rollback step-000100 lr=0.1235 clip=2.346 skip=3"
    bare = msgspec.structs.replace(whole, clip=None, skip=0)
    assert bare.describe() == "rollback step-000100 lr=0.1235"
    assert whole.rollback() == Rollback(
        checkpoint="step-000100", lr_scale=0.123456, clip=2.34567, skip=3
    )


def test_a_checkpoint_of_another_timeline_is_not_a_target() -> None:
    other = [manifest(60), msgspec.structs.replace(manifest(80), timeline=2)]
    assert plan_recovery(signal(105), [], other, RecoveryHistory(), NOW).step == 60


@pytest.mark.parametrize(
    ("now", "saved", "expected"), [(1.0, 0.4, 0.2), (0.4, 1.0, 0.2), (0.4, 0.4, 0.2)]
)
def test_the_lower_of_two_rates_is_halved(now: float, saved: float, expected: float) -> None:
    context = msgspec.structs.replace(NOW, lr_scale=now, lr_scales={"step-000100": saved})
    assert plan_recovery(signal(125), [], SAVED, RecoveryHistory(), context).lr_scale == expected


def test_another_signal_of_the_same_step_belongs_to_the_incident() -> None:
    alerts = [signal(105, "spike"), signal(105)]
    assert [a.id for a in incident(alerts, alerts[1])] == ["spike-105", "divergence-105"]


def test_without_a_plan_nothing_was_tried_or_refused() -> None:
    assert RecoveryForecast() == RecoveryForecast(attempt=None, refused="", tried=0)
    assert RecoveryForecast().tried == 0
    assert NOW.refused_at == 0


def test_data_skipped_before_the_checkpoint_change_nothing() -> None:
    past = RecoveryHistory(detours=[Detour(10, 5)])
    assert plan_recovery(signal(105), [], SAVED, past, NOW).skip == 5 + 20
