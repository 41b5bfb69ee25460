"""An alert that one odd record explains is told as such, and nobody wants to roll back for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fttui.engine.config.schema import PolicyConfig
from fttui.engine.core.anomaly import ALARM, WATCH, Alert
from fttui.engine.core.guard import Guard, UpdateVerdict
from fttui.engine.core.model_selection import ModelSelection
from fttui.engine.core.recovery import Probation, RecoveryAttempt
from fttui.engine.data.batches.batch_source import SeenExamples
from fttui.engine.data.tokens.examples import Example, PackedExample
from fttui.engine.protocol.events import (
    AnomalyRaised,
    CommandApplied,
    ProbationEnded,
    RolledBack,
)
from fttui.engine.protocol.settings import RunSettings
from fttui.engine.run.checkpoint_store import CheckpointStore
from fttui.engine.train.monitoring.anomaly_monitor import AnomalyMonitor
from fttui.engine.train.monitoring.anomaly_reporter import AnomalyReporter
from fttui.engine.train.monitoring.monitor import TrainingMonitor
from fttui.engine.train.monitoring.recovery_planner import RecoveryPlanner
from fttui.engine.train.monitoring.step_rows import NoRowLosses, RowLoss, RowReader

from .parts import (
    LogAtStep,
    Ranks,
    ScriptedDetector,
    Words,
    alert,
    checkpoint,
    example,
    finished,
    new_run,
    page_of,
    report_of,
    verdict,
)

LOSSES = {"odd": 9.0, "bad": 3.0, "nan": math.nan}
"""Loss of a row by its name; all others have 1."""


class Detector(ScriptedDetector):
    def usual_loss(self) -> float | None:
        return 1.0


class Scene:
    """A run at step 100 with a good checkpoint at step 60, whose rows have the losses above."""

    def __init__(self, path: Path) -> None:
        self.log = LogAtStep(100)
        self.run = new_run(path)
        self.ranks = Ranks()
        self.detector = Detector()
        self.passes: list[list[str]] = []
        self.fails: Exception | None = None
        log, store = self.log.log, CheckpointStore(self.run)
        self.reporter = AnomalyReporter(
            self.run, log, Words(), self.ranks, clock=lambda: 1e9, row_losses=self.losses
        )
        anomalies = AnomalyMonitor(self.detector, log, self.reporter, leads=True)
        self.planner = RecoveryPlanner(PolicyConfig(), store, log, self.ranks)
        self.guard = Guard(budget=2)
        selection = ModelSelection("loss", None)
        self.monitor = TrainingMonitor(self.guard, anomalies, self.planner, selection, log)
        checkpoint(self.run, 60, good=True)

    def losses(self, examples: Sequence[Example]) -> list[RowLoss]:
        self.passes.append([one.id for one in examples])
        if self.fails is not None:
            raise self.fails
        return [RowLoss(LOSSES.get(one.id.rstrip("0123456789"), 1.0)) for one in examples]

    def step(
        self, names: str, *alerts: Alert, loss: float = 3.0, before: str = "a1 a2 a3 a4"
    ) -> bool:
        """Finish a step with these rows; return whether the model was run once more."""
        self.log.log.record(finished(1.0))
        self.log.at += 1
        self.detector.alerts = list(alerts)
        self.log.log.record(event := finished(loss))
        rows = SeenExamples(*([example(n) for n in text.split()] for text in (names, before)))
        return self.monitor.observe(event, rows, RunSettings())

    def raised(self) -> AnomalyRaised:
        return self.log.of(AnomalyRaised)[-1]

    def judged(self, name: str, how: str) -> None:
        self.detector.verdicts = [verdict(name, how)]
        self.step("b1 b2")


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def spike(**more: Any) -> Alert:
    return alert("spike", 101, value=3.0, baseline=1.0, z=9.0, ratio=3.0, **more)


def test_a_spike_of_one_odd_record_is_to_watch_and_recommends_nothing(scene: Scene) -> None:
    assert scene.step("b1 odd b3 b4", spike(headline="up")) is True
    raised = scene.raised()
    assert (raised.severity, raised.explained_by) == (WATCH, "odd")
    assert raised.headline == "up; one odd record explains it: odd"
    assert raised.ways == []
    report = report_of(scene.run, "spike-101")
    assert (report.severity, report.explained_by, report.actions) == (WATCH, "odd", [])
    assert report.evidence.samples[0].loss == 9.0
    assert "# Loss spike at step 101: nothing to do" in page_of(scene.run, "spike-101")
    assert scene.passes == [["b1", "odd", "b3", "b4"], ["a1", "a2", "a3", "a4"]]


def test_neither_its_verdict_nor_a_probation_calls_for_a_recovery(scene: Scene) -> None:
    attempt = RecoveryAttempt(
        anomaly="x", checkpoint="step-60", step=60, lr_scale=0.5, clip=None, skip=0
    )
    scene.planner.state.recoveries.probation = Probation(attempt=attempt, until_step=500)
    scene.step("b1 odd b3 b4", spike())
    scene.judged("spike-101", "not recovered")
    assert scene.monitor.wanted("act") is None
    assert scene.log.of(ProbationEnded) == []


def test_a_spike_of_all_rows_is_an_alarm_and_is_recovered_from(scene: Scene) -> None:
    scene.step("bad1 bad2 bad3 bad4", spike())
    raised = scene.raised()
    assert (raised.severity, raised.explained_by) == (ALARM, "")
    assert raised.ways[0].text == "recover spike-101"
    assert "All 4 rows" in page_of(scene.run, "spike-101")
    scene.judged("spike-101", "not recovered")
    assert scene.monitor.wanted("act") is not None


def test_damaged_weights_are_an_alarm_even_beside_an_odd_record(scene: Scene) -> None:
    scene.step("b1 odd b3 b4", spike(), before="bad1 bad2 bad3 bad4")
    assert scene.raised().severity == ALARM
    assert "The weights are damaged" in page_of(scene.run, "spike-101")


def test_a_learning_rate_raised_before_forbids_the_explanation(scene: Scene) -> None:
    raised, lowered = RunSettings(lr_scale=50.0), RunSettings(lr_scale=1.0)
    for new, old, severity in ((raised, lowered, ALARM), (lowered, raised, ALARM)):
        scene.log.log.record(
            CommandApplied(id="c", command="lr scale 50", settings=new, previous=old)
        )
        scene.step("b1 odd b3 b4", spike())
        assert scene.raised().severity == severity
    assert "because the learning rate was raised" in page_of(scene.run, "spike-101")
    scene.log.at += 30
    later = msgspec.structs.replace(spike(), id="spike-133", step=scene.log.at + 1)
    scene.step("b1 odd b3 b4", later)
    assert scene.raised().severity == WATCH


@pytest.mark.parametrize(
    ("command", "severity"),
    [("rollback c", ALARM), ("rollback c lr=0.5", WATCH), ("recover", WATCH)],
)
def test_only_a_rollback_that_sets_the_rate_undoes_a_raised_one(
    scene: Scene, command: str, severity: str
) -> None:
    new, old = RunSettings(lr_scale=50.0), RunSettings(lr_scale=1.0)
    raised = CommandApplied(id="c", command="lr scale 50", settings=new, previous=old)
    scene.log.log.record(raised)
    back: dict[str, Any] = {"checkpoint": "c", "from_step": 100, "old_timeline": 1}
    scene.log.log.record(RolledBack(**back, to_step=90, new_timeline=2))
    scene.log.log.record(CommandApplied(id="d", command=command, old="100", new="90"))
    scene.log.at = 91
    scene.step("b1 odd b3 b4", msgspec.structs.replace(spike(), step=92))
    assert scene.raised().severity == severity


def test_a_divergence_is_never_explained(scene: Scene) -> None:
    scene.step("b1 odd b3 b4", alert("divergence", 101, value=3.0, baseline=1.0))
    assert (scene.raised().severity, scene.raised().explained_by) == (ALARM, "")


@pytest.mark.parametrize("quiet", [alert("plateau", 101, "info"), alert("straggler", 101, WATCH)])
def test_only_a_dangerous_alarm_runs_the_model(scene: Scene, quiet: Alert) -> None:
    assert scene.step("b1 b2", quiet) is False
    assert scene.step("b1 b2") is False
    assert scene.passes == []


def test_several_alarms_of_a_step_run_it_once(scene: Scene) -> None:
    blown = alert("grad_explosion", 101, value=30.0, baseline=1.0)
    scene.step("b1 odd b3 b4", blown, spike())
    assert len(scene.passes) == 2
    assert {e.explained_by for e in scene.log.of(AnomalyRaised)} == {"odd"}


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (NoRowLosses("it compares all pairs"), "not known: it compares all pairs"),
        (RuntimeError("out of memory"), "not known: computing them failed: out of memory"),
    ],
)
def test_losses_that_cannot_be_computed_leave_the_alarm_as_it_is(
    scene: Scene, error: Exception, words: str
) -> None:
    scene.fails = error
    scene.step("b1 odd b3 b4", spike())
    assert scene.raised().severity == ALARM
    assert words in page_of(scene.run, "spike-101")


def test_the_guard_skips_an_explained_step_instead_of_rolling_back(scene: Scene) -> None:
    for n in range(1, 4):
        step = scene.log.at + 1
        found = scene.monitor.judge(step, math.nan, math.nan, "rollback")
        assert found.verdict is UpdateVerdict.ROLLBACK
        scene.step("b1 nan b3 b4", alert("nonfinite", step), loss=math.nan)
        spared = scene.monitor.spares_rollback(step)
        assert spared == (n <= 2), "the budget of skipped updates is 2"
    assert scene.guard.rollbacks == 1
    assert scene.raised().explained_by == "nan"


def test_a_step_without_an_explanation_is_not_spared(scene: Scene) -> None:
    scene.monitor.judge(101, math.nan, math.nan, "rollback")
    assert scene.monitor.spares_rollback(101) is False
    scene.step("bad1 bad2", spike())
    assert scene.monitor.spares_rollback(101) is False
    assert scene.guard.rollbacks == 1


def test_a_checkpoint_after_an_explained_spike_is_as_good_as_one_before(scene: Scene) -> None:
    scene.step("b1 odd b3 b4", spike())
    assert scene.monitor.checkpoint_facts()["good"] is True
    scene.step("bad1 bad2", alert("spike", 102, value=3.0, baseline=1.0))
    assert scene.monitor.checkpoint_facts()["good"] is False


def test_ranks_agree_because_all_of_them_weigh_the_rows_of_all(tmp_path: Path) -> None:
    def rows_of(rank: int, names: str, *others: bytes) -> tuple[bytes, list[float]]:
        ranks = Ranks(rank, None, *others)
        reader = RowReader(ranks, Words(), lambda found: [RowLoss(len(e.id)) for e in found])
        seen = SeenExamples([example(n) for n in names.split()], [])
        read = reader.read(seen, [], losses=True)
        return ranks.gathered[0], [row.loss for row in read.rows]

    first, _ = rows_of(0, "a bb")
    _, both = rows_of(1, "ccc", first)
    assert sorted(both) == [1.0, 2.0, 3.0]


def test_documents_of_packed_rows_are_rows_of_their_own() -> None:
    packed = PackedExample((example("a"), example("b")))
    reader = RowReader(Ranks(), Words(), lambda found: [RowLoss(1.0) for _ in found])
    read = reader.read(SeenExamples([packed, example("c")], []), [], losses=True)
    assert [row.id for row in read.rows] == ["a", "b", "c"]
    assert [sample.id for sample in read.samples] == ["a", "b", "c"]
