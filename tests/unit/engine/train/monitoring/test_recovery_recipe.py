"""The rollback a report recommends by hand is the one that `recover` makes."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

import pytest

from fttui.engine.config.schema import DataConfig, ModelConfig, RunConfig, TrainConfig
from fttui.engine.core.reports.anomaly_report import AnomalyReport, from_json
from fttui.engine.data.batches.batch_source import SeenExamples
from fttui.engine.protocol.commands import Recover, Rollback, parse_command
from fttui.engine.protocol.events import RolledBack, StepFinished
from fttui.engine.protocol.settings import RunSettings
from fttui.engine.run.checkpoint_store import CheckpointStore, Manifest
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.train.distributed.agreement import SingleRank
from fttui.engine.train.event_log import EventLog
from fttui.engine.train.monitoring.anomaly_reporter import AnomalyReporter
from fttui.engine.train.monitoring.monitor import build_monitor

NOTHING_SEEN = SeenExamples([], [])


class Incident:
    """A monitor on a run with checkpoints, fed with losses; every step is finished at once."""

    def __init__(self, folder: Path, *, good: tuple[int, ...], lr_scale: float = 1.0) -> None:
        self.run = RunDirectory(folder / "run")
        self.run.reports.mkdir(parents=True)
        store = CheckpointStore(self.run)
        for number, step in enumerate(good):
            name = f"step-{step:06}"
            store.path(name).mkdir(parents=True)
            store.commit(
                Manifest(
                    name=name,
                    step=step,
                    timeline=1,
                    time=0.0,
                    world_size=1,
                    incarnation=1,
                    files={},
                    number=number,
                    control={"lr_scale": lr_scale},
                )
            )
        self.log, agreement = EventLog(None), SingleRank()
        reporter = AnomalyReporter(self.run, self.log, SimpleNamespace(), agreement)
        config = RunConfig(
            model=ModelConfig(id="m"), data=DataConfig(train="d"), train=TrainConfig(steps=1000)
        )
        self.monitor = build_monitor(config, store, self.log, reporter, agreement)

    def train(self, settings: RunSettings, *losses: float) -> None:
        for loss in losses:
            step = self.log.step + 1
            self.log.position.move_to(step, 1e-4)
            norm = 1.0 + 0.01 * (step % 7)
            event = StepFinished(
                loss=loss, grad_norm=norm, lr_scale=settings.lr_scale, clip=settings.clip
            )
            self.monitor.judge(step, loss, norm, "skip")
            self.log.record(event)
            self.monitor.observe(event, NOTHING_SEEN, settings)

    def roll_back(self, command: Rollback) -> None:
        to_step = int(command.checkpoint.rpartition("-")[2])
        self.log.record(
            RolledBack(
                checkpoint=command.checkpoint,
                from_step=self.log.step,
                to_step=to_step,
                old_timeline=1,
                new_timeline=1,
                skipped_batches=command.skip,
            )
        )
        self.monitor.rolled_back(to_step)
        self.log.position.move_to(to_step, 1e-4)

    def reports(self) -> list[AnomalyReport]:
        files = sorted(self.run.reports.glob("*.json"), key=lambda f: f.stat().st_mtime_ns)
        return [from_json(file.read_bytes()) for file in files]


def steady(steps: int) -> list[float]:
    return [1.0 + 0.01 * (n % 5) for n in range(steps)]


def by_hand(report: AnomalyReport) -> Rollback:
    commands = [parse_command(action.command) for action in report.actions]
    (found,) = [command for command in commands if isinstance(command, Rollback)]
    return found


def recommended(report: AnomalyReport) -> Recover:
    (found,) = [
        command
        for action in report.actions
        if isinstance(command := parse_command(action.command), Recover)
    ]
    return found


def same(by_hand: Rollback, made: Rollback) -> bool:
    """Equal to the four significant digits that a command is written with."""
    pairs = ((by_hand.lr_scale, made.lr_scale), (by_hand.clip, made.clip))
    return (by_hand.checkpoint, by_hand.skip) == (made.checkpoint, made.skip) and all(
        a == b or (a is not None and b is not None and math.isclose(a, b, rel_tol=5e-4))
        for a, b in pairs
    )


SETTINGS = {
    "as configured": RunSettings(),
    "clip looser than the usual norms": RunSettings(clip=5.0),
    "clip tighter than the usual norms": RunSettings(clip=0.3),
    "clip follows a percentile": RunSettings(clip=0.9, clip_percentile=90.0),
    "LR raised": RunSettings(lr_scale=8.0, clip=1.0),
    "LR lowered": RunSettings(lr_scale=0.3),
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
@pytest.mark.parametrize("bad", [60.0, math.nan], ids=["spike", "nonfinite"])
def test_the_rollback_of_a_report_is_the_one_that_recover_makes(
    tmp_path: Path, settings: RunSettings, bad: float
) -> None:
    incident = Incident(tmp_path, good=(20, 60))
    incident.train(settings, *steady(70), bad)
    report = incident.reports()[-1]
    made = incident.monitor.recovery(recommended(report).anomaly, settings)
    assert made.checkpoint == "step-000060"
    assert same(by_hand(report), made), (by_hand(report), made)
    assert report.evidence.checkpoint == made.checkpoint


def test_so_is_that_of_a_second_attempt(tmp_path: Path) -> None:
    incident, settings = Incident(tmp_path, good=(20, 60)), RunSettings(clip=2.0)
    incident.train(settings, *steady(70), 60.0)
    first = incident.monitor.recovery("", settings)
    incident.roll_back(first)
    assert first.lr_scale is not None
    lowered = RunSettings(lr_scale=first.lr_scale, clip=first.clip)
    incident.train(lowered, *steady(14), math.nan)
    report = incident.reports()[-1]
    second = incident.monitor.recovery(recommended(report).anomaly, lowered)
    assert second.checkpoint == "step-000020"
    assert same(by_hand(report), second), (by_hand(report), second)


def test_after_two_recoveries_a_report_says_stop_and_recover_refuses(tmp_path: Path) -> None:
    incident, settings = Incident(tmp_path, good=(20, 60)), RunSettings()
    incident.train(settings, *steady(70), 60.0)
    for _ in range(2):
        incident.roll_back(incident.monitor.recovery("", settings))
        incident.train(settings, *steady(14), math.nan)
    report = incident.reports()[-1]
    assert report.actions[0].command == "stop"
    assert "did not help" in report.actions[0].why
    assert not any(action.command.startswith(("recover", "rollback")) for action in report.actions)
