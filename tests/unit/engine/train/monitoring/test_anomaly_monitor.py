from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

from fttui.engine.core.anomaly import ALARM, INFO, WATCH, Alert, Detector
from fttui.engine.core.guard import NOTHING_PASSES, Limits
from fttui.engine.core.recovery import RecoveryForecast
from fttui.engine.protocol.event_parts import ModuleFlow
from fttui.engine.protocol.events import (
    AnomalyRaised,
    AnomalyResolved,
    CommandApplied,
    GradientsMeasured,
    StepFinished,
)
from fttui.engine.protocol.settings import RunSettings
from fttui.engine.run.checkpoint_store import Manifest
from fttui.engine.train.monitoring.anomaly_monitor import (
    AnomalyMonitor,
    AnomalyMonitorState,
    RecoveryCall,
    WayBack,
)
from fttui.engine.train.monitoring.anomaly_reporter import AnomalyReporter

from .parts import (
    LogAtStep,
    Ranks,
    ScriptedDetector,
    Words,
    alert,
    checkpoint,
    finished,
    new_run,
    report_of,
    seen,
    verdict,
)


class Scene:
    """A monitor with a scripted detector and everything around it."""

    def __init__(self, path: Path, *, rank: int = 0, timeline: int = 1) -> None:
        self.log = LogAtStep(100, timeline)
        self.run = new_run(path)
        self.ranks = Ranks(rank)
        self.detector = ScriptedDetector()
        self.asked_back: list[tuple[Alert, list[Alert]]] = []
        self.target: Manifest | None = None
        self.reporter = AnomalyReporter(
            self.run, self.log.log, Words(), self.ranks, clock=lambda: 1e9
        )
        self.monitor = AnomalyMonitor(self.detector, self.log.log, self.reporter, leads=rank == 0)

    def way_back(self, about: Alert) -> WayBack:
        self.asked_back.append((about, self.monitor.state.alerts))
        return WayBack(self.target, RecoveryForecast(refused="why", tried=2))

    def observe(self, event: StepFinished, refused: str = "") -> list[RecoveryCall]:
        return self.monitor.observe(event, seen(), refused, self.way_back)

    def step(self, *alerts: Alert, refused: str = "") -> list[RecoveryCall]:
        """Observe a step in which the detector raises these alerts."""
        self.detector.alerts = list(alerts)
        return self.observe(finished(), refused)

    def judged(self, of: str, how: str) -> list[RecoveryCall]:
        """Observe a step in which the detector gives a verdict."""
        self.detector.verdicts = [verdict(of, how)]
        return self.step()


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_an_alert_is_reported_and_resolved_by_its_verdict(scene: Scene) -> None:
    assert scene.step(alert("spike", 100)) == []
    (raised,) = scene.log.of(AnomalyRaised)
    assert (raised.id, raised.kind, raised.severity) == ("spike-100", "spike", ALARM)
    assert scene.monitor.state.open == {"spike-100": "spike-100"}
    assert report_of(scene.run, "spike-100").step == 100
    assert scene.judged("spike-100", "recovered") == []
    assert scene.log.of(AnomalyResolved) == [AnomalyResolved(id="spike-100", verdict="recovered")]
    assert scene.monitor.state.open == {}


def test_ids_on_later_timelines_name_the_timeline(tmp_path: Path) -> None:
    scene = Scene(tmp_path, timeline=3)
    scene.step(alert("spike", 100))
    assert [e.id for e in scene.log.of(AnomalyRaised)] == ["spike-100-t3"]
    assert scene.monitor.state.open == {"spike-100": "spike-100-t3"}
    assert scene.judged("spike-100", "not recovered") == [
        RecoveryCall("spike-100-t3", "spike-100 has not recovered")
    ]
    assert [e.id for e in scene.log.of(AnomalyResolved)] == ["spike-100-t3"]


def test_only_a_divergence_calls_for_a_recovery_at_once(scene: Scene) -> None:
    calls = scene.step(
        alert("divergence", 100, headline="away"), alert("nonfinite", 100), alert("spike", 100)
    )
    assert calls == [RecoveryCall("divergence-100", "away")]
    assert scene.step(alert("divergence", 101, WATCH)) == []


@pytest.mark.parametrize(
    ("kind", "how", "calls"),
    [
        ("spike", "not recovered", True),
        ("grad_explosion", "not recovered", True),
        ("spike", "recovered", False),
        ("spike", "undecided", False),
        ("plateau", "not recovered", False),
        ("vram_leak", "not recovered", False),
    ],
)
def test_an_instability_that_does_not_recover_calls_for_a_recovery(
    scene: Scene, kind: str, how: str, calls: bool
) -> None:
    scene.step(alert(kind, 100))
    assert bool(scene.judged(f"{kind}-100", how)) is calls


def test_a_step_may_raise_and_resolve_at_once_in_this_order(scene: Scene) -> None:
    scene.step(alert("spike", 70))
    scene.detector.verdicts = [verdict("spike-70", "not recovered")]
    calls = scene.step(alert("divergence", 100))
    assert [call.anomaly for call in calls] == ["divergence-100", "spike-70"]
    assert [type(e).__name__ for e in scene.log.events[-2:]] == ["AnomalyRaised", "AnomalyResolved"]


def test_the_incident_lasts_until_its_last_alarm_has_recovered(scene: Scene) -> None:
    scene.step(alert("spike", 100), alert("grad_explosion", 100), alert("plateau", 100, INFO))
    scene.log.log.record(CommandApplied(id="c", command="clip 0.5", new="0.5"))
    scene.judged("spike-100", "recovered")
    scene.step(alert("spike", 120))
    assert report_of(scene.run, "spike-120").evidence.tried == ["step 100: clip 0.5"]
    scene.judged("grad_explosion-100", "recovered")
    scene.judged("spike-120", "recovered")  # the plateau is no alarm
    scene.step(alert("spike", 140))
    assert report_of(scene.run, "spike-140").evidence.tried == []


def test_an_alarm_that_has_not_recovered_keeps_its_incident(scene: Scene) -> None:
    scene.step(alert("divergence", 100))
    scene.log.log.record(CommandApplied(id="c", command="clip 0.5", new="0.5"))
    scene.judged("divergence-100", "not recovered")
    scene.step(alert("spike", 140))
    assert report_of(scene.run, "spike-140").evidence.tried == ["step 100: clip 0.5"]


def test_an_incident_whose_values_were_back_is_over_without_its_verdicts(scene: Scene) -> None:
    scene.step(alert("spike", 100))
    scene.log.log.record(CommandApplied(id="c", command="clip 0.5", new="0.5"))
    scene.detector.back = {"spike-100"}
    scene.step(alert("vram_leak", 120, WATCH))
    scene.step(alert("spike", 125))
    assert report_of(scene.run, "spike-125").evidence.tried == []
    assert [e.incident for e in scene.log.of(AnomalyRaised)][1:] == ["vram_leak-120", "spike-125"]


@pytest.mark.parametrize(
    ("scale", "at", "incident"),
    [(50.0, 95, "spike-100"), (0.5, 95, "spike-125"), (50.0, 70, "spike-125")],
)
def test_an_incident_under_a_learning_rate_just_raised_goes_on(
    scene: Scene, scale: float, at: int, incident: str
) -> None:
    scene.log.at = at
    new, old = RunSettings(lr_scale=scale), RunSettings()
    scene.log.log.record(
        CommandApplied(id="c", command=f"lr scale {scale}", settings=new, previous=old)
    )
    scene.log.at = 99
    scene.step(alert("spike", 100))
    scene.detector.back = {"spike-100"}
    scene.step(alert("spike", 125))
    assert scene.log.of(AnomalyRaised)[-1].incident == incident


def test_a_verdict_on_no_alarm_does_not_end_an_incident(scene: Scene) -> None:
    scene.log.log.record(CommandApplied(id="c", command="clip 0.5", new="0.5"))
    scene.step(alert("plateau", 100, INFO))
    scene.judged("plateau-100", "recovered")
    scene.step(alert("spike", 120))
    assert report_of(scene.run, "spike-120").evidence.tried == ["step 100: clip 0.5"]


def test_the_report_names_the_checkpoint_to_return_to(scene: Scene) -> None:
    scene.target = checkpoint(scene.run, 80)
    first = alert("grad_explosion", 99, WATCH, incident="grad_explosion-99")
    second = alert("spike", 100, incident="grad_explosion-99")
    scene.step(first)
    scene.step(second)
    assert scene.asked_back == [(first, [first]), (second, [first, second])]
    evidence = report_of(scene.run, "spike-100").evidence
    assert (evidence.checkpoint, evidence.recovery.refused) == ("step-80", "why")


def test_the_last_alerts_are_kept(scene: Scene) -> None:
    scene.monitor.state.alerts = [alert("spike", step) for step in range(50)]
    scene.step(alert("spike", 50))
    assert [a.step for a in scene.monitor.state.alerts] == list(range(1, 51))
    saved = msgspec.convert(msgspec.to_builtins(scene.monitor.state), AnomalyMonitorState)
    saved.alerts.insert(0, alert("spike", 0))
    scene.monitor.restore(saved)
    assert [a.step for a in scene.monitor.state.alerts] == list(range(1, 51))


@pytest.mark.parametrize(
    ("kind", "collectives"), [("spike", 1), ("throughput_drop", 0), ("vram_leak", 0)]
)
def test_other_ranks_take_part_in_reports_but_not_in_those_of_local_kinds(
    scene: Scene, kind: str, collectives: int
) -> None:
    scene.step(alert(kind, 100, WATCH))
    assert len(scene.ranks.gathered) == collectives


def test_the_guard_s_reason_is_reported(scene: Scene) -> None:
    scene.step(alert("nonfinite", 100), refused="loss is nan at step 100; update skipped")
    found = report_of(scene.run, "nonfinite-100").evidence.guard
    assert found == "loss is nan at step 100; update skipped"


def test_the_detector_gets_the_step_and_rank_0_its_own_machine(tmp_path: Path) -> None:
    for rank, rate in ((0, 500.0), (1, None)):
        scene = Scene(tmp_path / str(rank), rank=rank)
        scene.observe(finished(2.0, tokens_per_s=500.0))
        (record,) = scene.detector.records
        assert (record["step"], record["loss"], record["tok_s"]) == (100, 2.0, rate)


def test_losses_and_norms_are_averaged(scene: Scene) -> None:
    for loss, norm, clipped in ((1.0, 2.0, True), (math.nan, math.inf, False), (1.0, 4.0, False)):
        scene.observe(finished(loss, norm, clipped=clipped))
    state = scene.monitor.state
    assert state.loss.value == pytest.approx(1.0)
    assert (state.norms.percentile(100), state.norms.clip_share()) == (4.0, 0.5)


def test_an_evaluation_is_one_record_without_samples(scene: Scene) -> None:
    scene.detector.alerts = [alert("overfit", 100, INFO), alert("divergence", 100)]
    calls = scene.monitor.evaluated({"loss": 2.5}, scene.way_back)
    assert scene.detector.records == [{"step": 100, "eval_loss": 2.5}]
    assert [e.id for e in scene.log.of(AnomalyRaised)] == ["overfit-100", "divergence-100"]
    assert calls == [RecoveryCall("divergence-100", "divergence at 100")]
    assert scene.ranks.gathered == []


def test_an_update_passes_within_three_times_the_usual_norm(scene: Scene) -> None:
    assert scene.monitor.limits() == Limits()
    scene.detector.usual = 1.5
    scene.observe(finished(norm=2.0))
    limits = scene.monitor.limits()
    assert limits == Limits(1.5, 6.0)
    assert scene.monitor.wants_gradients(1.5, 6.0) == ""
    assert scene.monitor.wants_gradients(1.6, 6.0) == "odd"
    assert scene.monitor.wants_gradients(1.5, 6.1) == "odd"
    assert scene.monitor.wants_gradients(math.nan, 1.0) == "odd"


def test_the_usual_norm_is_the_95th_percentile(scene: Scene) -> None:
    for norm in range(101):
        scene.monitor.state.norms.push(float(norm))
    assert scene.monitor.limits().grad_norm == pytest.approx(3 * 95)


def test_gradients_are_measured_once_when_asked_for(scene: Scene) -> None:
    scene.monitor.ask_gradients()
    assert scene.monitor.limits() == NOTHING_PASSES
    assert scene.monitor.wants_gradients(1.0, 1.0) == "asked"
    assert scene.monitor.limits() == Limits()
    assert scene.monitor.wants_gradients(1.0, 1.0) == ""


def test_an_alarm_without_modules_has_the_next_update_measured(scene: Scene) -> None:
    scene.step(alert("plateau", 100, INFO))
    assert scene.monitor.wants_gradients(1.0, 1.0) == ""
    scene.step(alert("spike", 100), alert("grad_explosion", 100))
    assert scene.monitor.wants_gradients(1.0, 1.0) == "after spike-100"


def test_a_request_for_gradients_stands_before_an_alarm_s(scene: Scene) -> None:
    scene.monitor.ask_gradients()
    scene.step(alert("spike", 100))
    assert scene.monitor.wants_gradients(1.0, 1.0) == "asked"


def test_an_alarm_whose_update_was_measured_asks_for_nothing(scene: Scene) -> None:
    flow = [ModuleFlow(module="a", grad_norm=1.0, update_norm=1.0, weight_norm=1.0)]
    scene.log.log.record(GradientsMeasured(modules=flow, dead=[], exploding=["a"], reason="odd"))
    scene.step(alert("spike", 100))
    assert scene.monitor.wants_gradients(1.0, 1.0) == ""


def test_a_rollback_resolves_the_alerts_after_its_step(scene: Scene) -> None:
    scene.step(alert("spike", 80))
    scene.step(alert("spike", 90))
    scene.step(alert("grad_explosion", 100))
    scene.monitor.rolled_back(90)
    assert scene.log.of(AnomalyResolved) == [
        AnomalyResolved(id="grad_explosion-100", verdict="rolled back")
    ]
    assert set(scene.monitor.state.open) == {"spike-80", "spike-90"}


def test_an_alarm_that_was_rolled_back_no_longer_prolongs_the_incident(scene: Scene) -> None:
    scene.step(alert("spike", 80))
    scene.step(alert("spike", 100))
    scene.log.log.record(CommandApplied(id="c", command="clip 0.5", new="0.5"))
    scene.monitor.rolled_back(90)
    scene.judged("spike-80", "recovered")
    scene.step(alert("spike", 120))
    assert report_of(scene.run, "spike-120").evidence.tried == []


def test_the_end_of_the_run_resolves_what_is_open(tmp_path: Path) -> None:
    scene = Scene(tmp_path, timeline=2)
    scene.step(alert("spike", 100))
    scene.detector.verdicts = [verdict("spike-100", "undecided")]
    scene.monitor.end()
    assert scene.log.of(AnomalyResolved) == [
        AnomalyResolved(id="spike-100-t2", verdict="undecided")
    ]


def test_a_restored_monitor_goes_on_with_the_state_and_keeps_what_is_open(tmp_path: Path) -> None:
    one, other = Scene(tmp_path / "1"), Scene(tmp_path / "2")
    one.step(alert("spike", 90))
    saved = msgspec.convert(msgspec.to_builtins(one.monitor.state), AnomalyMonitorState)
    other.step(alert("spike", 100))
    other.monitor.ask_gradients()
    other.monitor.restore(saved)
    state = other.monitor.state
    assert [a.id for a in state.alerts] == ["spike-90"]
    assert state.open == {"spike-100": "spike-100", "spike-90": "spike-90"}
    assert other.monitor.wants_gradients(1.0, 1.0) == "asked"


def test_a_restored_detector_raises_what_the_first_one_would_have(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    whole = AnomalyMonitor(Detector(), scene.log.log, scene.reporter, leads=True)
    for step in range(1, 61):
        scene.log.at = step
        whole.observe(finished(2.0 + 0.01 * (step % 3)), seen(), "", scene.way_back)
    saved = msgspec.to_builtins(whole.state)
    fresh = AnomalyMonitor(Detector(), scene.log.log, scene.reporter, leads=True)
    fresh.restore(msgspec.convert(saved, AnomalyMonitorState))
    scene.log.at = 61
    assert whole.limits() == fresh.limits()
    for monitor in (whole, fresh):
        monitor.observe(finished(20.0), seen(), "", scene.way_back)
    assert [e.id for e in scene.log.of(AnomalyRaised)] == ["spike-61", "spike-61"]
    assert msgspec.to_builtins(fresh.state) == msgspec.to_builtins(whole.state)
    assert msgspec.to_builtins(fresh.state) != saved
