from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fttui.engine.config.schema import (
    BenchmarksConfig,
    CheckpointConfig,
    DataConfig,
    EarlyStopConfig,
    GuardConfig,
    ModelConfig,
    PolicyConfig,
    RunConfig,
    TrainConfig,
)
from fttui.engine.core.anomaly import Alert
from fttui.engine.core.guard import Guard, UpdateVerdict
from fttui.engine.core.model_selection import ModelSelection
from fttui.engine.core.recovery import NoWayBack
from fttui.engine.protocol.benchmarks.result import BenchmarkFinished
from fttui.engine.protocol.commands import AddNote, Recover, Rollback
from fttui.engine.protocol.events import (
    AnomalyRaised,
    AnomalyResolved,
    NoteAdded,
    ProbationEnded,
    RolledBack,
)
from fttui.engine.protocol.races.variant_step import VariantStep, variant_steps
from fttui.engine.protocol.settings import RunSettings
from fttui.engine.run.checkpoint_store import CheckpointStore, Manifest
from fttui.engine.train.monitoring.anomaly_monitor import AnomalyMonitor
from fttui.engine.train.monitoring.anomaly_reporter import AnomalyReporter
from fttui.engine.train.monitoring.monitor import TrainingMonitor, build_monitor
from fttui.engine.train.monitoring.recovery_planner import RecoveryPlanner
from tests.support.benchmarks import result

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

KEYS = [
    "guard",
    "detector",
    "loss",
    "norms",
    "alerts",
    "open",
    "incidents",
    "recoveries",
    "autopilot",
    "eval_loss",
    "best_eval_loss",
    "judgement",
]
"""The keys of `watch` in a checkpoint; every version reads and writes them."""

OLD: dict[str, Any] = {
    "guard": {"budget": 5, "skipped_at": [42], "rollbacks": 1},
    "detector": {"sensitivity": 1.0, "last_step": 50},
    "loss": {"decay": 0.98, "total": 0.08, "weight": 0.04},
    "norms": {"norms": {"size": 200, "values": [3.0, 1.0]}, "clipped": [True, False]},
    "alerts": [
        {
            "id": "spike-45",
            "kind": "spike",
            "severity": "alarm",
            "step": 45,
            "headline": "loss 6 is ×6 its usual 1 (z 14)",
            "value": 6.0,
            "baseline": 1.0,
            "z": 14.0,
            "ratio": 6.0,
        }
    ],
    "open": {"spike-45": "spike-45-t2"},
    "recoveries": {
        "attempts": [
            {
                "anomaly": "spike-30",
                "checkpoint": "step-20",
                "step": 20,
                "lr_scale": 0.5,
                "clip": 1.0,
                "skip": 30,
            }
        ],
        "detours": [{"step": 20, "skipped": 30}],
        "probation": {
            "attempt": {
                "anomaly": "spike-30",
                "checkpoint": "step-20",
                "step": 20,
                "lr_scale": 0.5,
                "clip": 1.0,
                "skip": 30,
            },
            "until_step": 70,
        },
    },
    "autopilot": {"budget": 3, "cooldown": 50, "acted": 1, "quiet_until": 80, "trained": 60},
    "eval_loss": 1.5,
    "best_eval_loss": 1.25,
    "judgement": {
        "step": 50,
        "metrics": {"loss": 1.5},
        "best": {"value": 1.25, "step": 40, "waited": 1},
        "stopping": {"value": 1.25, "step": 40, "waited": 1},
    },
}
"""The field as an earlier version wrote it, without what the detector leaves at its default."""


class Scene:
    """A monitor with a scripted detector, at step 50."""

    def __init__(
        self,
        path: Path,
        stop: EarlyStopConfig | None = None,
        benchmarks: BenchmarksConfig = BenchmarksConfig(),  # noqa: B008 - frozen
    ) -> None:
        self.log = LogAtStep(50)
        self.run = new_run(path)
        self.ranks = Ranks()
        self.detector = ScriptedDetector()
        log, store = self.log.log, CheckpointStore(self.run)
        reporter = AnomalyReporter(self.run, log, Words(), self.ranks, clock=lambda: 1e9)
        planner = RecoveryPlanner(PolicyConfig(), store, log, self.ranks)
        anomalies = AnomalyMonitor(self.detector, log, reporter, leads=True)
        self.monitor = TrainingMonitor(
            Guard(budget=GuardConfig().nonfinite_budget),
            anomalies,
            planner,
            ModelSelection("loss", stop),
            log,
            store,
            benchmarks,
        )

    def step(self, *alerts: Alert, loss: float = 1.0, nonfinite: str = "skip") -> UpdateVerdict:
        self.log.at += 1
        found = self.monitor.judge(self.log.at, loss, 1.0, nonfinite)
        self.detector.alerts = list(alerts)
        skipped = found.verdict is not UpdateVerdict.APPLY
        event = finished(loss, 1.0, skipped=skipped)
        self.monitor.observe(event, seen(), RunSettings(), found.reason)
        return found.verdict


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_the_parts_import_no_torch() -> None:
    code = (
        "import sys; import fttui.engine.train.monitoring.monitor; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_state_has_the_keys_of_every_version(scene: Scene) -> None:
    state = scene.monitor.state()
    assert list(state) == KEYS
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(state)) == state


def test_a_state_of_an_earlier_version_comes_back_as_it_was(scene: Scene) -> None:
    scene.monitor.restore(OLD)
    state = scene.monitor.state()
    detector = state.pop("detector")
    assert state == {
        **{key: OLD[key] for key in KEYS if key not in ("detector", "incidents")},
        "incidents": {
            "newest": "",
            "step": 0,
            "odd": "",
            "odd_step": 0,
            "alarms": [],
            "lasting": False,
            "newest_of": {},
        },
        "alerts": [
            {**one, "explained_by": "", "again": None, "incident": ""} for one in OLD["alerts"]
        ],
        "guard": {
            "budget": 5,
            "skipped_at": [42],
            "rollbacks": 0,
            "refuses": True,
            "refused_at": 42,
        },
    }
    assert detector["last_step"] == 50
    assert scene.monitor.norm_percentile(100) == 3.0


def test_a_state_from_before_some_keys_existed_is_read(scene: Scene) -> None:
    first = {key: OLD[key] for key in ("guard", "detector", "loss", "norms", "alerts")}
    scene.monitor.restore(first)
    assert scene.monitor.state()["judgement"]["step"] == -1


@pytest.mark.parametrize("missing", ["guard", "detector", "loss", "norms", "alerts"])
def test_a_state_that_lacks_a_part_changes_nothing(scene: Scene, missing: str) -> None:
    before = scene.monitor.state()
    with pytest.raises(msgspec.ValidationError):
        scene.monitor.restore({key: value for key, value in OLD.items() if key != missing})
    assert scene.monitor.state() == before


def test_a_refused_update_has_a_reason_until_the_next_one(scene: Scene) -> None:
    assert scene.step(alert("nonfinite", 51), loss=math.nan) is UpdateVerdict.SKIP
    reason = "loss is NaN at step 51; update skipped, 4 more allowed"
    assert report_of(scene.run, "nonfinite-51").evidence.guard == reason
    assert scene.step(alert("spike", 52)) is UpdateVerdict.APPLY
    assert report_of(scene.run, "spike-52").evidence.guard == ""


def test_the_report_on_an_applied_update_names_no_reason_of_the_guard(scene: Scene) -> None:
    scene.monitor.judge(51, math.nan, 1.0, "skip")
    scene.detector.alerts = [alert("spike", 51)]
    scene.monitor.observe(finished(), seen(), RunSettings())
    assert report_of(scene.run, "spike-51").evidence.guard == ""


def test_a_halt_calls_for_a_recovery_and_a_skip_does_not(scene: Scene) -> None:
    scene.step(loss=math.nan)
    assert scene.monitor.wanted("act") is None
    assert scene.step(loss=math.nan, nonfinite="halt") is UpdateVerdict.HALT
    assert scene.monitor.wanted("act") == (
        Recover(),
        "loss is NaN at step 52; halting, as guard.nonfinite says",
    )


def test_alerts_of_steps_and_evaluations_call_for_a_recovery(scene: Scene) -> None:
    scene.step(alert("divergence", 51))
    scene.detector.alerts = []
    assert scene.monitor.wanted("act") == (Recover(anomaly="divergence-51"), "divergence at 51")
    for _ in range(50):
        scene.step()
    scene.detector.alerts = [alert("divergence", 101)]
    scene.monitor.evaluated({"loss": 9.0})
    assert scene.monitor.wanted("act") == (Recover(anomaly="divergence-101"), "divergence at 101")


@pytest.mark.parametrize("nonfinite", ["skip", "halt", "rollback"])
def test_a_recovery_passes_the_last_refused_update(scene: Scene, nonfinite: str) -> None:
    checkpoint(scene.run, 40)
    scene.step(alert("nonfinite", 51), loss=math.nan, nonfinite=nonfinite)
    scene.step(loss=math.nan, nonfinite=nonfinite)
    assert scene.monitor.recovery("", RunSettings()).skip == 52 - 40 + 20
    with pytest.raises(NoWayBack):
        scene.monitor.recovery("spike-1", RunSettings())


def test_without_a_refused_update_a_recovery_passes_the_anomaly(scene: Scene) -> None:
    checkpoint(scene.run, 40)
    scene.step(alert("spike", 51))
    assert scene.monitor.recovery("", RunSettings()).skip == 51 - 40 + 20


def test_a_recovery_passes_over_nothing_that_an_incident_before_it_has_spoilt(
    scene: Scene,
) -> None:
    for step in (10, 40):
        checkpoint(scene.run, step)
    scene.log.at = 19
    scene.step(alert("grad_explosion", 20))
    scene.log.at = 39
    scene.detector.verdicts = [verdict("grad_explosion-20", "recovered")]
    scene.step()
    scene.log.at = 41
    scene.step(alert("spike", 42))
    assert [e.incident for e in scene.log.of(AnomalyRaised)] == ["grad_explosion-20", "spike-42"]
    assert scene.monitor.recovery("", RunSettings()).checkpoint == "step-40"


def test_a_recovery_passes_over_nothing_that_was_back_without_a_verdict(scene: Scene) -> None:
    for step in (10, 40):
        checkpoint(scene.run, step)
    scene.log.at = 19
    scene.step(alert("grad_explosion", 20))
    scene.log.at = 41
    scene.detector.back = {"grad_explosion-20"}
    scene.step(alert("spike", 42), alert("grad_explosion", 42))
    assert scene.monitor.recovery("", RunSettings()).checkpoint == "step-40"


def test_a_recovery_does_not_stop_in_a_divergence_that_never_recovered(scene: Scene) -> None:
    for step in (40, 80):
        checkpoint(scene.run, step)
    scene.log.at = 50
    scene.step(alert("divergence", 51))
    scene.log.at = 80
    scene.detector.verdicts = [verdict("divergence-51", "not recovered")]
    scene.step()
    scene.log.at = 84
    scene.step(alert("spike", 85))
    assert scene.monitor.recovery("", RunSettings()).checkpoint == "step-40"


def test_a_recovery_goes_back_before_an_alarm_that_a_resumed_run_still_waits_for(
    scene: Scene, tmp_path: Path
) -> None:
    scene.step(alert("spike", 51))
    saved = scene.monitor.state()
    (tmp_path / "resumed").mkdir()
    resumed = Scene(tmp_path / "resumed")
    for step in (40, 80):
        checkpoint(resumed.run, step)
    resumed.monitor.restore(saved)
    resumed.log.at = 89
    resumed.monitor.follow([alert("divergence", 90)], seen(), RunSettings())
    assert [e.incident for e in resumed.log.of(AnomalyRaised)] == ["spike-51"]
    assert resumed.monitor.recovery("", RunSettings()).checkpoint == "step-40"


def test_the_guard_s_way_back_considers_earlier_warnings(scene: Scene) -> None:
    checkpoint(scene.run, 40)
    checkpoint(scene.run, 51)
    scene.step(alert("grad_explosion", 51))
    assert scene.step(loss=math.nan, nonfinite="rollback") is UpdateVerdict.ROLLBACK
    assert scene.monitor.way_back() == Rollback(checkpoint="step-40", skip=12)


def test_a_probation_ends_with_an_observed_step(scene: Scene) -> None:
    checkpoint(scene.run, 40)
    scene.step(alert("spike", 51))
    to = scene.monitor.recovery("", RunSettings())
    scene.log.log.record(
        RolledBack(
            checkpoint=to.checkpoint, from_step=51, to_step=40, old_timeline=1, new_timeline=2
        )
    )
    scene.monitor.rolled_back(40)
    assert scene.log.of(AnomalyResolved) == [AnomalyResolved(id="spike-51", verdict="rolled back")]
    scene.monitor.restore({**OLD, "alerts": [], "recoveries": {}})
    scene.log.at = 88
    scene.step()
    assert scene.log.of(ProbationEnded) == []
    scene.step()
    assert [(e.passed, e.steps) for e in scene.log.of(ProbationEnded)] == [(True, 50)]


def test_a_checkpoint_says_how_good_it_is(scene: Scene) -> None:
    assert scene.monitor.checkpoint_facts() == {
        "good": True,
        "metrics": {},
        "loss": None,
        "eval_loss": None,
    }
    scene.step(loss=2.0)
    scene.monitor.evaluated({"loss": 1.5, "perplexity": 4.5})
    assert scene.monitor.is_best()
    assert scene.monitor.checkpoint_facts() == {
        "good": True,
        "metrics": {"loss": 1.5, "perplexity": 4.5},
        "loss": pytest.approx(2.0),
        "eval_loss": 1.5,
    }
    scene.step(loss=2.0)
    facts = scene.monitor.checkpoint_facts()
    assert (facts["metrics"], facts["eval_loss"], scene.monitor.is_best()) == ({}, 1.5, False)


def test_a_checkpoint_is_not_good_after_an_alarm_or_with_a_worse_evaluation(scene: Scene) -> None:
    scene.step(alert("spike", 51))
    assert not scene.monitor.checkpoint_facts()["good"]
    for _ in range(20):
        scene.step()
    assert scene.monitor.checkpoint_facts()["good"]
    for loss in (1.0, 1.5):
        scene.log.at += 1
        scene.monitor.evaluated({"loss": loss})
    assert not scene.monitor.checkpoint_facts()["good"]


def test_early_stopping_reads_the_evaluations(tmp_path: Path) -> None:
    scene = Scene(tmp_path, EarlyStopConfig(patience=1))
    for loss in (1.0, 1.0):
        assert scene.monitor.reason_to_stop() is None
        scene.log.at += 1
        scene.monitor.evaluated({"loss": loss})
    assert scene.monitor.reason_to_stop() == (
        "loss has not improved for 1 evaluation (best 1 at step 51)"
    )


def test_the_end_resolves_what_is_open(scene: Scene) -> None:
    scene.step(alert("spike", 51))
    scene.detector.verdicts = [verdict("spike-51", "undecided")]
    scene.monitor.end()
    assert scene.log.of(AnomalyResolved) == [AnomalyResolved(id="spike-51", verdict="undecided")]


def test_gradients_are_measured_on_request(scene: Scene) -> None:
    assert scene.monitor.limits().hold(1.0, 1.0)
    scene.monitor.ask_gradients()
    assert not scene.monitor.limits().hold(1.0, 1.0)
    assert scene.monitor.wants_gradients(1.0, 1.0) == "asked"
    assert scene.log.of(AnomalyRaised) == []


class Configured:
    """The monitor of a run with a configuration, built as a session builds it."""

    def __init__(self, path: Path, rank: int = 0, **sections: Any) -> None:
        self.log, run = LogAtStep(), new_run(path)
        config = RunConfig(model=ModelConfig(id="m"), data=DataConfig(train="d"), **sections)
        ranks, store = Ranks(rank), CheckpointStore(run)
        reporter = AnomalyReporter(run, self.log.log, Words(), ranks)
        self.monitor = build_monitor(config, store, self.log.log, reporter, ranks)

    def steps(self, *losses: float, **more: Any) -> Configured:
        for loss in losses:
            self.log.at += 1
            self.monitor.observe(finished(loss, **more), seen(), RunSettings())
        return self


def test_the_guard_has_the_configured_budget(tmp_path: Path) -> None:
    train = TrainConfig(steps=10)
    monitor = Configured(tmp_path, train=train, guard=GuardConfig(nonfinite_budget=1)).monitor
    assert monitor.judge(1, math.nan, 1.0, "skip").verdict is UpdateVerdict.SKIP
    assert monitor.judge(2, math.nan, 1.0, "skip").verdict is UpdateVerdict.HALT


@pytest.mark.parametrize(("task", "dead"), [("sft", True), ("dpo", False)])
def test_only_a_loss_that_does_not_fall_to_zero_is_dead_at_zero(
    tmp_path: Path, task: str, dead: bool
) -> None:
    scene = Configured(tmp_path, task=task, train=TrainConfig(steps=99))
    scene.steps(*[0.5 + 0.01 * (n % 5) for n in range(40)], *[0.0] * 30)
    assert ("dead" in {e.kind for e in scene.log.of(AnomalyRaised)}) is dead


def test_the_detector_has_the_configured_sensitivity(tmp_path: Path) -> None:
    losses = [*[1.0 + 0.05 * (n % 5) for n in range(60)], 2.2]
    for sensitivity, alerts in ((4.0, True), (0.05, False)):
        scene = Configured(
            tmp_path / str(sensitivity),
            train=TrainConfig(steps=99),
            guard=GuardConfig(sensitivity=sensitivity),
        ).steps(*losses)
        assert bool(scene.log.of(AnomalyRaised)) is alerts


@pytest.mark.parametrize("rank", [0, 1])
def test_rank_0_alone_judges_the_throughput_of_its_machine(tmp_path: Path, rank: int) -> None:
    scene = Configured(tmp_path, rank, train=TrainConfig(steps=99))
    steady = [1.0 + 0.01 * (n % 5) for n in range(100)]
    scene.steps(*steady, tokens_per_s=1000.0).steps(*steady, tokens_per_s=300.0)
    kinds = [e.kind for e in scene.log.of(AnomalyRaised)]
    assert ("throughput_drop" in kinds) is (rank == 0)


def test_evaluations_are_judged_as_configured(tmp_path: Path) -> None:
    scene = Configured(
        tmp_path,
        train=TrainConfig(steps=99, early_stop=EarlyStopConfig(patience=1)),
        checkpoint=CheckpointConfig(best="loss"),
    )
    for loss in (1.0, 2.0):
        scene.log.at += 1
        scene.monitor.evaluated({"loss": loss})
        assert scene.monitor.is_best() is (loss == 1.0)
    assert scene.monitor.reason_to_stop() is not None


def test_a_result_of_a_benchmark_is_recorded_and_joins_its_checkpoint(scene: Scene) -> None:
    store = CheckpointStore(scene.run)
    store.make_folder("step-000004")
    store.commit(
        Manifest(
            name="step-000004", step=4, timeline=1, time=0, world_size=1, incarnation=1, files={}
        )
    )
    found = result(0.75)
    assert scene.monitor.noted(AddNote(text="x", result=found), "bench") == "recorded at step 4"
    assert scene.monitor.noted(AddNote(text="a note"), "ann") == ""
    assert scene.monitor.noted(AddNote(text="x", result=result(step=9)), "bench")  # it was removed
    assert scene.log.of(BenchmarkFinished) == [
        BenchmarkFinished(result=found), BenchmarkFinished(result=result(step=9)),
    ]  # fmt: skip
    assert scene.log.of(NoteAdded) == [NoteAdded(text="a note", issuer="ann")]
    assert store.find("4").metrics == {"bench.words.acc": 0.75}


def test_the_curve_of_a_variant_follows_its_note_step_by_step(scene: Scene) -> None:
    steps = variant_steps("lr 2e-4", {5: 2.0, 6: 1.5, 7: 1.25}, {6: {"loss": 1.75}})
    first = AddNote(text="race, variant 1 of 2", steps=steps[:2])
    assert scene.monitor.noted(first, "ann") == "recorded 2 steps"
    assert scene.monitor.noted(AddNote(text="", steps=steps[2:]), "ann") == "recorded 1 step"
    assert scene.log.of(NoteAdded) == [NoteAdded(text="race, variant 1 of 2", issuer="ann")]
    assert scene.log.of(VariantStep) == [
        VariantStep(variant="lr 2e-4", at=5, loss=2.0),
        VariantStep(variant="lr 2e-4", at=6, loss=1.5, metrics={"loss": 1.75}),
        VariantStep(variant="lr 2e-4", at=7, loss=1.25),
    ]


def test_a_result_under_other_conditions_chooses_no_checkpoint(tmp_path: Path) -> None:
    scene = Scene(tmp_path, benchmarks=BenchmarksConfig(tasks=["words"]))
    store = CheckpointStore(scene.run)
    store.make_folder("step-000004")
    plain = {"timeline": 1, "time": 0, "world_size": 1, "incarnation": 1, "files": {}}
    store.commit(msgspec.convert({"name": "step-000004", "step": 4, **plain}, Manifest))
    said = scene.monitor.noted(AddNote(text="x", result=result(0.75, total=90)), "bench")
    assert "it chooses no checkpoint: eval.benchmarks has another limit" in said
    assert len(scene.log.of(BenchmarkFinished)) == 1
    assert store.find("4").metrics == {}
