from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from fttui.engine.config.schema import PolicyConfig
from fttui.engine.core.anomaly import INFO, WATCH, Alert
from fttui.engine.core.anomaly.state import State
from fttui.engine.core.meters import LossAverage, RecentNorms
from fttui.engine.core.recovery import NoWayBack
from fttui.engine.protocol.commands import Recover, Rollback
from fttui.engine.protocol.events import AutopilotDecided, ProbationEnded, RolledBack
from fttui.engine.protocol.settings import RunSettings
from fttui.engine.run.checkpoint_store import CheckpointStore
from fttui.engine.train.monitoring.anomaly_monitor import AnomalyMonitorState, RecoveryCall
from fttui.engine.train.monitoring.recovery_planner import RecoveryPlanner, RecoveryPlannerState

from .parts import LogAtStep, Ranks, alert, checkpoint, new_run

NO_WAY = "on this timeline to recover from; to roll back anyway: rollback CHECKPOINT"


class Scene:
    """A planner of a run that is at step 120, with the alerts that its monitor has seen."""

    def __init__(self, path: Path, *alerts: Alert, ranks: Ranks | None = None) -> None:
        self.log = LogAtStep(120)
        self.run = new_run(path)
        self.ranks = ranks or Ranks()
        self.planner = self.new_planner()
        self.seen = AnomalyMonitorState(
            detector=State(), loss=LossAverage(), norms=RecentNorms(), alerts=list(alerts)
        )

    def new_planner(self, ranks: Ranks | None = None) -> RecoveryPlanner:
        policy = PolicyConfig(budget=2, cooldown=10, probation=30)
        store = CheckpointStore(self.run)
        return RecoveryPlanner(policy, store, self.log.log, ranks or self.ranks)

    def recovery(self, anomaly: str = "", refused_at: int = 0, **settings: Any) -> Rollback:
        return self.planner.recovery(anomaly, RunSettings(**settings), self.seen, refused_at)

    def go_back(self, to: Rollback, to_step: int) -> None:
        """Make a rollback."""
        old, self.log.at = self.log.at, to_step
        self.log.log.timeline += 1
        self.log.log.record(
            RolledBack(
                checkpoint=to.checkpoint,
                from_step=old,
                to_step=to_step,
                old_timeline=self.log.log.timeline - 1,
                new_timeline=self.log.log.timeline,
                skipped_batches=to.skip,
            )
        )

    def recovered(self) -> Scene:
        """Recover to step 80 because of the alerts, which are then forgotten as in its state."""
        checkpoint(self.run, 80)
        self.go_back(self.recovery(), 80)
        self.seen.alerts = []
        return self

    def decide(self, mode: Literal["off", "propose", "act"]) -> tuple[Recover, str] | None:
        self.planner.call(RecoveryCall("spike-100", "why"))
        return self.planner.wanted(mode)


def test_the_autopilot_proposes(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    assert scene.decide("propose") is None
    assert scene.log.of(AutopilotDecided) == [
        AutopilotDecided(
            anomaly="spike-100",
            decision="propose",
            command="recover spike-100",
            reason="why",
            budget_left=2,
        )
    ]
    assert scene.planner.wanted("propose") is None
    assert len(scene.log.of(AutopilotDecided)) == 1


def test_the_autopilot_that_is_off_forgets_the_call(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    assert scene.decide("off") is None
    assert scene.planner.wanted("act") is None
    assert scene.log.events == []


def test_the_autopilot_acts_within_cooldown_and_budget(tmp_path: Path) -> None:
    scene, acted = Scene(tmp_path), (Recover(anomaly="spike-100"), "why")
    assert scene.decide("act") == acted
    for _ in range(9):
        scene.planner.stepped()
    assert scene.decide("act") is None
    scene.planner.stepped()
    assert scene.decide("act") == acted
    for _ in range(100):
        scene.planner.stepped()
    assert scene.decide("act") is None
    assert [(e.decision, e.budget_left, e.reason) for e in scene.log.of(AutopilotDecided)] == [
        ("act", 1, "why"),
        ("wait", 1, "why; the autopilot acted recently and waits 1 more steps"),
        ("act", 0, "why"),
        ("wait", 0, "why; the autopilot's budget of 2 recoveries is used up"),
    ]


def test_the_newest_call_is_decided_on(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.planner.call(RecoveryCall("spike-100", "first"))
    scene.planner.call(RecoveryCall("", "second"))
    assert scene.planner.wanted("act") == (Recover(), "second")


def test_a_recovery_goes_back_before_the_first_warning(tmp_path: Path) -> None:
    scene = Scene(
        tmp_path,
        alert("grad_explosion", 95, WATCH, incident="one"),
        alert("spike", 100, incident="one"),
    )
    for step in (60, 80, 96):
        checkpoint(scene.run, step)
    scene.seen.norms.push(0.8)
    assert scene.recovery(refused_at=110, lr_scale=0.5, clip=1.0) == Rollback(
        checkpoint="step-80", lr_scale=0.25, clip=0.8, skip=110 - 80 + 20
    )


def test_a_recovery_clips_at_the_95th_percentile_of_the_norms(tmp_path: Path) -> None:
    scene = Scene(tmp_path, alert("spike", 100))
    checkpoint(scene.run, 80)
    for norm in range(101):
        scene.seen.norms.push(float(norm))
    assert scene.recovery(clip=100.0).clip == pytest.approx(95)


def test_a_recovery_knows_the_scale_a_checkpoint_was_trained_with(tmp_path: Path) -> None:
    scene = Scene(tmp_path, alert("spike", 100))
    checkpoint(scene.run, 80, control={"lr_scale": 0.25})
    assert scene.recovery().lr_scale == 0.125
    checkpoint(scene.run, 80, control={"lr_scale": "odd"})
    assert scene.recovery().lr_scale == 0.5


def test_a_recovery_from_a_named_anomaly(tmp_path: Path) -> None:
    first, second = alert("spike", 30), alert("spike", 100)
    scene = Scene(tmp_path, first, second, alert("spike", 110, INFO), alert("plateau", 115))
    for step in (20, 80):
        checkpoint(scene.run, step)
    assert scene.recovery("").checkpoint == "step-80"
    assert scene.recovery("spike-30").checkpoint == "step-20"
    assert scene.recovery("spike-30-t2").checkpoint == "step-20"
    assert scene.recovery("spike-100").checkpoint == "step-80"


@pytest.mark.parametrize("anomaly", ["spike-99", "plateau-115"])
def test_an_anomaly_that_is_unknown_or_no_instability_is_refused(
    tmp_path: Path, anomaly: str
) -> None:
    scene = Scene(tmp_path, alert("spike", 100), alert("plateau", 115))
    checkpoint(scene.run, 80)
    with pytest.raises(NoWayBack) as refused:
        scene.recovery(anomaly)
    assert str(refused.value) == f"there was no anomaly {anomaly!r} {NO_WAY}"


def test_without_an_instability_there_is_nothing_to_recover_from(tmp_path: Path) -> None:
    with pytest.raises(NoWayBack) as refused:
        Scene(tmp_path, alert("plateau", 100)).recovery()
    assert str(refused.value) == f"there was no instability {NO_WAY}"


def test_without_a_good_checkpoint_there_is_no_way_back(tmp_path: Path) -> None:
    scene = Scene(tmp_path, alert("spike", 100))
    checkpoint(scene.run, 80, good=False)
    checkpoint(scene.run, 70, timeline=2)
    with pytest.raises(NoWayBack, match="no good checkpoint before step 100"):
        scene.recovery()


def test_every_rank_gets_the_plan_of_rank_0(tmp_path: Path) -> None:
    scene = Scene(tmp_path, alert("spike", 100))
    checkpoint(scene.run, 80)
    planned = scene.recovery()
    assert len(scene.ranks.shared) == 1
    other = Ranks(1, scene.ranks.shared)
    empty = AnomalyMonitorState(
        detector=State(), loss=LossAverage(), norms=RecentNorms(), alerts=[]
    )
    assert scene.new_planner(other).recovery("", RunSettings(), empty, 0) == planned
    assert other.shared == []


def test_every_rank_gets_the_reason_of_rank_0(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    with pytest.raises(NoWayBack) as refused:
        scene.recovery()
    assert scene.ranks.shared == [b"", str(refused.value).encode()]
    other = Ranks(1, list(scene.ranks.shared))
    scene.seen.alerts = [alert("spike", 100)]
    with pytest.raises(NoWayBack) as also_refused:
        scene.new_planner(other).recovery("", RunSettings(), scene.seen, 0)
    assert str(also_refused.value) == str(refused.value)
    assert other.shared == []


def test_the_guard_goes_back_past_the_refused_step_and_never_twice_to_one(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    for step in (60, 80):
        checkpoint(scene.run, step)
    assert scene.planner.way_back(scene.seen) == Rollback(checkpoint="step-80", skip=40)
    assert scene.planner.way_back(scene.seen) == Rollback(checkpoint="step-60", skip=60)
    assert scene.planner.way_back(scene.seen) is None
    assert scene.ranks.shared[-1] == b""
    assert len(scene.ranks.shared) == 3


def test_other_ranks_get_the_guard_s_way_back_from_rank_0(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    shared = [msgspec.msgpack.encode(Rollback(checkpoint="step-7", skip=3)), b""]
    planner = scene.new_planner(Ranks(1, shared))
    checkpoint(scene.run, 80)
    assert planner.way_back(scene.seen) == Rollback(checkpoint="step-7", skip=3)
    assert planner.way_back(scene.seen) is None
    found = planner.good_checkpoint(alert("spike", 120), [])
    assert found is not None
    assert found.name == "step-80"


@pytest.mark.parametrize(
    ("warning", "target"),
    [
        (alert("spike", 70, WATCH, incident="one"), "step-60"),
        (alert("spike", 70, WATCH, incident="another"), "step-100"),
        (alert("spike", 100, INFO, incident="one"), "step-100"),
        (alert("plateau", 100, WATCH, incident="one"), "step-100"),
    ],
)
def test_warnings_of_the_same_incident_move_the_way_back(
    tmp_path: Path, warning: Alert, target: str
) -> None:
    scene = Scene(tmp_path)
    for step in (60, 80, 100, 120):
        checkpoint(scene.run, step)
    own = alert("nonfinite", 120, incident="one")
    found = scene.planner.good_checkpoint(own, [warning, own])
    assert found is not None
    assert found.name == target


@pytest.mark.parametrize(("at", "target"), [(70, "step-60"), (69, "step-100")])
def test_the_guard_goes_back_before_the_incident_that_goes_on(
    tmp_path: Path, at: int, target: str
) -> None:
    scene = Scene(tmp_path, alert("spike", at, incident=f"spike-{at}"))
    for step in (60, 80, 100):
        checkpoint(scene.run, step)
    scene.seen.incidents.join(scene.seen.alerts[0], f"spike-{at}")
    found = scene.planner.way_back(scene.seen)
    assert found is not None
    assert found.checkpoint == target


def test_a_way_back_stays_on_this_timeline_and_those_it_grew_from(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    checkpoint(scene.run, 80)
    checkpoint(scene.run, 100, timeline=2)
    found = scene.planner.good_checkpoint(alert("spike", 120), [])
    assert found is not None
    assert found.name == "step-80"


def test_a_recovery_is_on_probation_until_its_steps_are_over(tmp_path: Path) -> None:
    scene = Scene(tmp_path, alert("spike", 100)).recovered()
    scene.log.at = 109
    scene.planner.judge_probation([])
    assert scene.log.of(ProbationEnded) == []
    scene.log.at = 110
    scene.planner.judge_probation([alert("spike", 80), alert("spike", 90, WATCH)])
    assert scene.log.of(ProbationEnded) == [
        ProbationEnded(
            anomaly="spike-100",
            checkpoint="step-80",
            passed=True,
            reason="no alarm, and the loss is finite",
            steps=30,
        )
    ]
    assert scene.planner.state.recoveries.attempts == []
    assert scene.planner.state.recoveries.probation is None
    assert scene.planner.wanted("act") is None
    scene.planner.judge_probation([])
    assert len(scene.log.of(ProbationEnded)) == 1


def test_an_alarm_after_a_recovery_ends_its_probation_and_calls_for_the_next(
    tmp_path: Path,
) -> None:
    scene = Scene(tmp_path, alert("spike", 100)).recovered()
    scene.log.at = 90
    harmless = [alert("plateau", 85, INFO), alert("dead", 86), alert("spike", 87, WATCH)]
    scene.planner.judge_probation(harmless)
    assert scene.log.of(ProbationEnded) == []
    scene.planner.judge_probation([*harmless, alert("spike", 88), alert("divergence", 89)])
    (ended,) = scene.log.of(ProbationEnded)
    assert (ended.passed, ended.reason, ended.steps) == (False, "spike at 88", 10)
    assert scene.planner.state.recoveries.probation is None
    assert len(scene.planner.state.recoveries.attempts) == 1
    assert scene.planner.wanted("act") == (
        Recover(anomaly="spike-88"),
        "the recovery failed: spike at 88",
    )


def test_recoveries_that_did_not_help_are_not_repeated(tmp_path: Path) -> None:
    scene = Scene(tmp_path, alert("spike", 100))
    checkpoint(scene.run, 60)
    checkpoint(scene.run, 80)
    for target, step in (("step-80", 80), ("step-60", 60)):
        scene.log.at = 120
        to = scene.recovery()
        assert to.checkpoint == target
        scene.go_back(to, step)
    with pytest.raises(NoWayBack, match="2 recoveries did not help"):
        scene.recovery()


def test_a_rollback_to_another_checkpoint_is_no_recovery(tmp_path: Path) -> None:
    scene = Scene(tmp_path, alert("spike", 100))
    checkpoint(scene.run, 80)
    planned = scene.recovery()
    scene.go_back(Rollback(checkpoint="step-60", skip=5), 60)
    assert scene.planner.state.recoveries.attempts == []
    assert [(d.step, d.skipped) for d in scene.planner.state.recoveries.detours] == [(60, 5)]
    scene.go_back(planned, 80)
    assert scene.planner.state.recoveries.attempts == []


def test_other_events_leave_a_planned_recovery_alone(tmp_path: Path) -> None:
    scene = Scene(tmp_path, alert("spike", 100))
    checkpoint(scene.run, 80)
    planned = scene.recovery()
    scene.decide("propose")
    scene.go_back(planned, 80)
    (attempt,) = scene.planner.state.recoveries.attempts
    assert (attempt.anomaly, attempt.checkpoint, attempt.step) == ("spike-100", "step-80", 80)
    probation = scene.planner.state.recoveries.probation
    assert probation is not None
    assert probation.until_step == 110


def test_a_rollback_undoes_no_recovery_and_no_decision_of_the_autopilot(tmp_path: Path) -> None:
    scene = Scene(tmp_path, alert("spike", 100)).recovered()
    scene.decide("act")
    scene.planner.stepped()
    scene.planner.call(RecoveryCall("spike-100", "stale"))
    scene.planner.restore(RecoveryPlannerState())
    assert len(scene.planner.state.recoveries.attempts) == 1
    assert (scene.planner.state.autopilot.acted, scene.planner.state.autopilot.trained) == (1, 1)
    assert scene.planner.wanted("act") is None


def test_a_new_process_goes_on_with_what_was_tried_before_it(tmp_path: Path) -> None:
    scene = Scene(tmp_path, alert("spike", 100)).recovered()
    scene.decide("act")
    saved = msgspec.to_builtins(scene.planner.state)
    planner = scene.new_planner()
    assert planner.state == RecoveryPlannerState(
        autopilot=msgspec.structs.replace(scene.planner.state.autopilot, acted=0, quiet_until=0)
    )
    planner.restore(msgspec.convert(saved, RecoveryPlannerState))
    assert planner.state == scene.planner.state


def test_a_forecast_plans_what_recover_would_do_without_asking_the_ranks(tmp_path: Path) -> None:
    scene = Scene(tmp_path, alert("spike", 100))
    checkpoint(scene.run, 60)
    checkpoint(scene.run, 80)
    settings = RunSettings(lr_scale=0.5)
    found = scene.planner.forecast(alert("spike", 100), settings, scene.seen, 0)
    assert scene.ranks.shared == []
    assert found.checkpoint is not None
    assert found.checkpoint.name == "step-80"
    assert found.forecast.attempt is not None
    assert found.forecast.attempt.rollback() == scene.recovery(lr_scale=0.5)
    assert (found.forecast.refused, found.forecast.tried) == ("", 0)
    scene.go_back(Rollback(checkpoint="step-80"), 80)
    again = scene.planner.forecast(alert("spike", 100), settings, scene.seen, 0)
    assert again.forecast.tried == 1


def test_a_forecast_names_why_recover_would_refuse(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    found = scene.planner.forecast(alert("spike", 100), RunSettings(), scene.seen, 0)
    assert found.checkpoint is None
    assert found.forecast.attempt is None
    assert "no good checkpoint" in found.forecast.refused


def test_there_is_no_forecast_for_what_recover_does_not_help_against(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    checkpoint(scene.run, 80)
    for found in (
        scene.planner.forecast(alert("plateau", 100), RunSettings(), scene.seen, 0),
        scene.planner.without_recovery(alert("spike", 100), scene.seen),
    ):
        assert found.checkpoint is not None
        assert found.checkpoint.name == "step-80"
        assert (found.forecast.attempt, found.forecast.refused) == (None, "")
