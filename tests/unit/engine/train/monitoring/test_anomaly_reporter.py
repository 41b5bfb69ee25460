from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from fttui.engine.core.anomaly import WATCH, Alert
from fttui.engine.core.meters import RecentNorms
from fttui.engine.core.recovery import RecoveryForecast
from fttui.engine.core.reports.advice import LrRise
from fttui.engine.core.reports.anomaly_report import Module, TrainingSample
from fttui.engine.data.batches.batch_source import SeenExamples
from fttui.engine.data.tokens.examples import PairExample
from fttui.engine.protocol.commands import parse_command
from fttui.engine.protocol.event_parts import ModuleFlow, RecommendedCommand
from fttui.engine.protocol.events import (
    AnomalyRaised,
    AutopilotDecided,
    CommandApplied,
    GradientsMeasured,
    LogEmitted,
    RolledBack,
)
from fttui.engine.protocol.settings import RunSettings
from fttui.engine.run.checkpoint_store import Manifest
from fttui.engine.train.monitoring.anomaly_reporter import AnomalyReporter
from fttui.engine.train.monitoring.step_rows import StepRows

from .parts import (
    LogAtStep,
    Ranks,
    Words,
    alert,
    checkpoint,
    example,
    finished,
    new_run,
    page_of,
    report_of,
    seen,
)


class Scene:
    """A reporter at step 100."""

    def __init__(self, path: Path, ranks: Ranks | None = None, timeline: int = 1) -> None:
        self.log = LogAtStep(100, timeline)
        self.run = new_run(path)
        self.ranks = ranks or Ranks()
        self.norms = RecentNorms()
        self.reporter = AnomalyReporter(
            self.run, self.log.log, Words(), self.ranks, clock=lambda: 1e9
        )

    def report(
        self,
        about: Alert,
        samples: SeenExamples | None = None,
        way_back: Manifest | None = None,
        guard: str = "",
    ) -> str:
        self.reporter.report(
            about,
            norms=self.norms,
            way_back=way_back,
            forecast=RecoveryForecast(refused="no way", tried=1),
            rows=None if samples is None else self.reporter.look(samples, losses=False),
            guard=guard,
        )
        return self.reporter.public_id(about)

    def applied(self, command: str, old: str = "", new: str = "", issuer: str = "ann") -> None:
        self.log.log.record(
            CommandApplied(id="c", command=command, old=old, new=new, issuer=issuer)
        )

    def rolled_back(self, to_step: int) -> None:
        self.log.log.record(
            RolledBack(
                checkpoint="c", from_step=100, to_step=to_step, old_timeline=1, new_timeline=2
            )
        )

    def measured(self, *names: str, dead: str = "", exploding: str = "") -> None:
        flows = [
            ModuleFlow(module=n, grad_norm=float(i), update_norm=0.5, weight_norm=9.0)
            for i, n in enumerate(names, 1)
        ]
        self.log.log.record(
            GradientsMeasured(
                modules=flows, dead=dead.split(), exploding=exploding.split(), reason="odd"
            )
        )


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_a_report_is_written_and_announced(scene: Scene) -> None:
    target = checkpoint(scene.run, 80, loss=1.25, eval_loss=1.5)
    about = alert(
        "spike", 100, headline="up", value=6.0, baseline=1.0, z=14.0, ratio=6.0,
        incident="spike-100",
    )  # fmt: skip
    assert scene.report(about, seen(), target, "skipped") == "spike-100"
    report = report_of(scene.run, "spike-100")
    assert (report.id, report.evidence.time, report.evidence.run) == ("spike-100", 1e9, "run-1")
    assert report.evidence.guard == "skipped"
    assert (report.evidence.recovery.refused, report.evidence.recovery.tried) == ("no way", 1)
    assert (report.evidence.checkpoint, report.evidence.checkpoint_step) == ("step-80", 80)
    assert report.evidence.checkpoint_why == (
        "before the first warning, no alarm in the 20 steps before this checkpoint, "
        "loss 1.25, evaluation loss 1.5, at most 3% above the lowest"
    )
    assert page_of(scene.run, "spike-100").startswith("# Loss spike at step 100: `lr scale 0.5`")
    assert scene.log.of(AnomalyRaised) == [
        AnomalyRaised(
            id="spike-100",
            kind="spike",
            severity="alarm",
            headline="up",
            value=6.0,
            baseline=1.0,
            z=14.0,
            ratio=6.0,
            report="spike-100",
            actions=[action.command for action in report.actions],
            checkpoint="step-80",
            incident="spike-100",
            recommended=[
                RecommendedCommand(text=a.command, why=a.why, command=parse_command(a.command))
                for a in report.actions
            ],
        )
    ]
    assert report.actions


def test_alarms_of_one_cause_carry_the_id_of_the_first(scene: Scene) -> None:
    scene.report(alert("spike", 100, incident="spike-100"))
    scene.report(alert("divergence", 110, incident="spike-100"))
    assert [raised.incident for raised in scene.log.of(AnomalyRaised)] == 2 * ["spike-100"]
    assert report_of(scene.run, "divergence-110").incident == "spike-100"
    assert "**Incident:** began with spike-100" in page_of(scene.run, "divergence-110")
    assert "**Incident:**" not in page_of(scene.run, "spike-100")


def test_without_a_way_back_a_report_names_none(scene: Scene) -> None:
    scene.report(alert())
    evidence = report_of(scene.run, "spike-100").evidence
    assert (evidence.checkpoint, evidence.checkpoint_step, evidence.checkpoint_why) == (
        None,
        None,
        "",
    )
    assert scene.log.of(AnomalyRaised)[0].checkpoint is None


def test_an_unknown_loss_of_the_checkpoint_is_left_out(scene: Scene) -> None:
    scene.report(alert(), None, checkpoint(scene.run, 80))
    why = report_of(scene.run, "spike-100").evidence.checkpoint_why
    assert why == "before the first warning, no alarm in the 20 steps before this checkpoint"


def test_reports_of_later_timelines_have_names_of_their_own(tmp_path: Path) -> None:
    scene = Scene(tmp_path, timeline=2)
    assert scene.report(alert()) == "spike-100-t2"
    assert report_of(scene.run, "spike-100-t2").evidence.timeline == 2


def test_evidence_comes_from_the_last_two_steps(scene: Scene) -> None:
    for loss in (3.0, 2.0):
        scene.log.log.record(finished(loss))
    scene.norms.push(1.0, clipped=True)
    scene.norms.push(1.0)
    last = {
        "epoch": 0.5,
        "lr": 2e-4,
        "lr_scale": 0.5,
        "clip": 1.0,
        "mem_allocated_bytes": 5,
        "mem_total_bytes": 9,
        "rss_bytes": 3,
        "rank_s": [1.0, 2.0],
        "rank_mem_bytes": [5, 6],
        "extra": {"loss_scale": 64.0},
    }
    scene.log.log.record(finished(6.0, 7.0, **last))
    scene.report(alert())
    found = msgspec.structs.asdict(report_of(scene.run, "spike-100").evidence)
    want: dict[str, Any] = {
        "current_loss": 6.0,
        "previous_loss": 2.0,
        "grad_norm": 7.0,
        "grad_normal": (1.0, 1.0),
        "clip_share": 0.5,
        "epoch": 0.5,
        "lr": 2e-4,
        "lr_scale": 0.5,
        "clip": 1.0,
        "mem_used_bytes": 5,
        "mem_total_bytes": 9,
        "loss_scale": 64.0,
        "rank_s": [1.0, 2.0],
        "rank_mem_bytes": [5, 6],
    }
    assert {key: found[key] for key in want} == want


def test_host_memory_counts_where_there_is_no_device(scene: Scene) -> None:
    scene.log.log.record(finished(rss_bytes=3))
    scene.report(alert())
    evidence = report_of(scene.run, "spike-100").evidence
    assert (evidence.mem_used_bytes, evidence.previous_loss) == (3, None)


def test_samples_come_from_the_batches_of_all_ranks(tmp_path: Path) -> None:
    theirs = TrainingSample(rank=1, batch="current", id="x", tokens=2, preview="a b")
    modules = [Module("m", 1.0, 2.0, "dead")]
    other = StepRows(samples=[theirs], modules=modules)
    scene = Scene(tmp_path, Ranks(0, None, msgspec.msgpack.encode(other)))
    scene.report(alert(), SeenExamples([example("now", 41)], [example("then", 40)]))
    evidence = report_of(scene.run, "spike-100").evidence
    assert [(s.rank, s.batch, s.id, s.tokens) for s in evidence.samples] == [
        (0, "current", "now", 41),
        (0, "previous", "then", 40),
        (1, "current", "x", 2),
    ]
    assert [s.preview for s in evidence.samples] == [
        " ".join(map(str, range(40))) + " …",
        " ".join(map(str, range(40))),
        "a b",
    ]
    assert evidence.modules == modules


def test_at_most_eight_samples_of_a_batch_are_shown(scene: Scene) -> None:
    scene.report(alert(), SeenExamples([example(str(n)) for n in range(9)], []))
    assert len(report_of(scene.run, "spike-100").evidence.samples) == 8


def test_a_pair_is_shown_by_both_of_its_texts(scene: Scene) -> None:
    pair = PairExample("p", [1, 2], [3], ())
    scene.report(alert(), SeenExamples([pair], []))
    (sample,) = report_of(scene.run, "spike-100").evidence.samples
    assert sample.preview == "1 2 → 3"


def test_without_examples_no_other_rank_takes_part(scene: Scene) -> None:
    scene.measured("a")
    scene.report(alert())
    assert scene.ranks.gathered == []
    assert [m.name for m in report_of(scene.run, "spike-100").evidence.modules] == ["a"]


def test_modules_measured_in_the_step_of_the_alarm_are_its_own(scene: Scene) -> None:
    scene.measured("a", "b", dead="a", exploding="b")
    scene.report(alert(), seen())
    modules = report_of(scene.run, "spike-100").evidence.modules
    assert {(m.name, m.note) for m in modules} == {("a", "dead"), ("b", "exploding")}
    assert {(m.name, m.grad_norm, m.update_norm) for m in modules} == {
        ("a", 1.0, 0.5),
        ("b", 2.0, 0.5),
    }
    assert scene.reporter.names_modules


def test_modules_of_an_earlier_step_are_not_reported(scene: Scene) -> None:
    scene.measured("a")
    scene.log.at = 101
    scene.report(alert("spike", 101), seen())
    assert report_of(scene.run, "spike-101").evidence.modules == []
    assert not scene.reporter.names_modules


def test_modules_measured_after_an_alarm_are_added_to_its_report(scene: Scene) -> None:
    scene.report(alert(), seen())
    scene.measured("late")
    assert report_of(scene.run, "spike-100").evidence.modules == []
    scene.log.at = 101
    scene.measured("a")
    scene.log.at = 102
    scene.measured("b")
    evidence = report_of(scene.run, "spike-100").evidence
    assert [m.name for m in evidence.modules] == ["a"]
    assert evidence.modules_step == 101
    assert "Modules, measured at step 101" in page_of(scene.run, "spike-100")


def test_what_the_autopilot_decides_is_added_to_the_newest_alarm(scene: Scene) -> None:
    decided = AutopilotDecided(anomaly="", decision="wait", command="recover", reason="later")
    scene.log.log.record(decided)
    scene.report(alert("spike", 99))
    scene.report(alert("plateau", 100, WATCH))
    scene.log.log.record(decided)
    assert report_of(scene.run, "spike-99").autopilot == "wait `recover`: later"
    assert report_of(scene.run, "plateau-100").autopilot == ""


def test_a_rollback_is_added_to_all_alarms_that_it_undoes(scene: Scene) -> None:
    for step in (70, 80, 81, 100):
        scene.report(alert("spike", step))
    scene.rolled_back(80)
    scene.applied("rollback step-80", "100", "80, timeline 2")
    initiated = {n: report_of(scene.run, f"spike-{n}").initiated for n in (70, 80, 81, 100)}
    text = "step 100 → 80, timeline 2, `rollback step-80`, ann"
    assert initiated == {70: "", 80: "", 81: text, 100: text}
    scene.report(alert("spike", 90))
    scene.applied("recover spike-90", "90", "80, timeline 3")
    assert report_of(scene.run, "spike-100").initiated == text
    assert report_of(scene.run, "spike-90").initiated.startswith("step 90 → 80, timeline 3")


def test_a_command_that_is_no_rollback_answers_no_alarm(scene: Scene) -> None:
    scene.report(alert("spike", 100))
    scene.applied("clip 0.5", "1", "0.5")
    assert report_of(scene.run, "spike-100").initiated == ""


def test_what_was_tried_is_in_the_next_report(scene: Scene) -> None:
    scene.report(alert("spike", 99))
    scene.rolled_back(99)
    scene.rolled_back(98)
    scene.applied("recover", "100", "98")
    scene.applied("lr scale 0.5", "1", "×0.5")
    scene.applied("rollback last lr=0.1", "100", "90")
    scene.applied("rollback last", "100", "90")
    scene.report(alert("spike", 100))
    evidence = report_of(scene.run, "spike-100").evidence
    assert evidence.tried == [
        "step 100: recover",
        "step 100: lr scale 0.5",
        "step 100: rollback last lr=0.1",
        "step 100: rollback last",
    ]
    assert [(c.step, c.text) for c in evidence.lr_changes] == [
        (100, "recover"),
        (100, "lr scale 0.5 (×0.5)"),
        (100, "rollback last lr=0.1"),
    ]
    assert evidence.rollbacks == 1


def test_a_rollback_before_any_alarm_does_not_count_as_tried(scene: Scene) -> None:
    scene.rolled_back(10)
    scene.report(alert("spike", 100))
    assert report_of(scene.run, "spike-100").evidence.rollbacks == 0


def test_after_the_incident_nothing_counts_as_tried(scene: Scene) -> None:
    scene.report(alert("spike", 98))
    scene.report(alert("spike", 99))
    scene.rolled_back(90)
    scene.applied("clip 0.5")
    scene.reporter.calm()
    scene.applied("rollback step-90", "99", "90")
    assert report_of(scene.run, "spike-98").initiated == ""
    assert report_of(scene.run, "spike-99").initiated != ""
    scene.reporter.calm()
    scene.report(alert("spike", 100))
    evidence = report_of(scene.run, "spike-100").evidence
    assert (evidence.tried, evidence.rollbacks) == ([], 0)


def test_other_ranks_announce_but_write_nothing(tmp_path: Path) -> None:
    scene = Scene(tmp_path, Ranks(1))
    scene.report(alert("spike", 99))
    scene.report(alert("spike", 100), seen())
    scene.rolled_back(90)
    scene.applied("rollback step-90", "100", "90")
    assert list(scene.run.reports.iterdir()) == []
    assert [e.id for e in scene.log.of(AnomalyRaised)] == ["spike-99", "spike-100"]
    assert len(scene.ranks.gathered) == 1


def test_a_report_that_cannot_be_written_is_announced_all_the_same(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fttui.engine.run.run_dir.RunDirectory.write", full)
    assert scene.report(alert()) == "spike-100"
    (error,) = scene.log.of(LogEmitted)
    assert error.level == "error"
    assert error.text.startswith("report spike-100 ")
    assert "No space left on device" in error.text
    assert len(scene.log.of(AnomalyRaised)) == 1
    monkeypatch.undo()
    scene.applied("rollback step-90", "100", "90")
    assert report_of(scene.run, "spike-100").initiated != ""


def test_the_last_twenty_interventions_are_kept(scene: Scene) -> None:
    for number in range(21):
        scene.applied(f"lr scale 0.{number + 1}")
    scene.report(alert("spike", 100))
    evidence = report_of(scene.run, "spike-100").evidence
    assert len(evidence.tried) == len(evidence.lr_changes) == 20
    assert evidence.tried[0] == "step 100: lr scale 0.2"


def test_one_rollback_is_added_to_each_alarm_once(scene: Scene) -> None:
    for step in (90, 95):
        scene.report(alert("spike", step))
    scene.rolled_back(80)
    scene.applied("rollback step-80", "95", "80")
    scene.report(alert("spike", 85))
    scene.rolled_back(70)
    scene.applied("rollback step-70", "85", "70")
    first, second = (report_of(scene.run, name).initiated for name in ("spike-90", "spike-85"))
    assert first.startswith("step 95 → 80")
    assert second.startswith("step 85 → 70")
    assert report_of(scene.run, "spike-95").initiated == first


def test_a_report_names_the_rise_of_the_rate_and_the_rate_before_the_first_one(
    scene: Scene,
) -> None:
    for step, before, after in ((95, 1.0, 2.0), (99, 2.0, 50.0)):
        scene.log.at = step
        command = f"lr scale {after:g}"
        new, old = RunSettings(lr_scale=after), RunSettings(lr_scale=before)
        scene.log.log.record(CommandApplied(id="c", command=command, settings=new, previous=old))
    scene.log.at = 101
    scene.report(alert("grad_explosion", 101))
    rise = report_of(scene.run, "grad_explosion-101").evidence.lr_rise
    assert rise == LrRise(step=99, command="lr scale 50", before=1.0)
    scene.log.at = 130
    scene.report(alert("grad_explosion", 130))
    assert report_of(scene.run, "grad_explosion-130").evidence.lr_rise is None
