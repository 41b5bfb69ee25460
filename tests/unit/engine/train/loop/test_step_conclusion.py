"""What follows from the verdict on a step, at its conclusion."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from fttui.engine.core.guard import UpdateVerdict
from fttui.engine.protocol.commands import Rollback
from fttui.engine.protocol.events import AnyEvent, LogEmitted, StepFinished
from fttui.engine.protocol.settings import RunSettings
from fttui.engine.train.distributed.agreement import SingleRank
from fttui.engine.train.event_log import EventLog
from fttui.engine.train.loop.step_conclusion import Measurements, StepConclusion

METER: Any = SimpleNamespace(total=None, own=None)
BACK = Rollback(checkpoint="step-4", skip=1)


class Scene:
    """A conclusion of a step that has ended, between scripted parts that note what is asked."""

    def __init__(
        self,
        verdict: UpdateVerdict = UpdateVerdict.APPLY,
        *,
        ran_model: bool = False,
        spared: bool = False,
        back: Rollback | None = BACK,
    ) -> None:
        self.done: list[str] = []
        self.lines: list[str] = []
        log = EventLog(None)
        log.listen(self._note)
        control: Any = SimpleNamespace(
            wanted_at_boundary=False,
            settings=RunSettings(),
            drop_step=lambda: self.done.append("drop"),
            demand=lambda command: self.done.append(f"demand {command.checkpoint}"),
            halt=lambda reason: self.done.append(f"halt {reason}"),
        )
        monitor: Any = SimpleNamespace(
            take=lambda event: [],
            follow=lambda *_: ran_model,
            spares_rollback=lambda step: spared and step == 5,
            way_back=lambda: back,
            wanted=lambda mode: None,
        )
        flow: Any = SimpleNamespace(measuring=False)
        self.conclusion = StepConclusion(
            log,
            control,
            monitor,
            SingleRank(),
            set_lr=lambda lr: None,
            measured=Measurements(flow, METER),
        )
        step: Any = SimpleNamespace(
            ended=True, number=5, verdict=verdict, refused="bad", seen=None,
            event=lambda used: StepFinished(loss=1.0), held_bytes=lambda reserves: None,
        )  # fmt: skip
        self.conclusion.step = step
        self.conclusion.conclude()

    def _note(self, event: AnyEvent) -> None:
        if isinstance(event, LogEmitted):
            self.lines.append(event.text)


@pytest.mark.parametrize("ran_model", [False, True])
def test_a_step_in_progress_is_dropped_if_the_model_was_run_for_a_report(ran_model: bool) -> None:
    """It may have used the buffers of its forward pass."""
    assert Scene(ran_model=ran_model).done == (["drop"] if ran_model else [])


def test_the_guards_rollback_is_made_unless_one_odd_record_explains_the_step() -> None:
    assert Scene(UpdateVerdict.ROLLBACK).done == ["demand step-4"]
    spared = Scene(UpdateVerdict.ROLLBACK, spared=True)
    assert spared.done == []
    assert spared.lines == [
        "one odd record explains the step; its update is skipped without a rollback"
    ]
    assert Scene(UpdateVerdict.ROLLBACK, back=None).done == ["halt bad"]
    assert Scene(UpdateVerdict.HALT, spared=True).done == ["halt bad"]


class LateScene:
    """A conclusion whose monitor sees a step on another thread, during the step after it."""

    def __init__(self, verdict: UpdateVerdict = UpdateVerdict.APPLY) -> None:
        self.told: list[str] = []
        self.alarms = False
        self.taken_on: list[str] = []
        log = EventLog(None)
        log.listen(lambda event: self.told.append(type(event).__name__))
        control: Any = SimpleNamespace(
            wanted_at_boundary=False,
            settings=RunSettings(),
            drop_step=lambda: self.told.append("drop"),
            halt=lambda reason: self.told.append("halt"),
        )
        control.demand = lambda *_: setattr(control, "wanted_at_boundary", True)
        monitor: Any = SimpleNamespace(
            take=self._take,
            follow=lambda alerts, *_: self.told.append(f"follow {alerts}"),
            wanted=lambda mode: (BACK, "an alarm") if self.alarms else None,
        )
        flow: Any = SimpleNamespace(measuring=False)
        self.conclusion = StepConclusion(
            log,
            control,
            monitor,
            SingleRank(),
            set_lr=lambda lr: None,
            measured=Measurements(flow, METER),
        )
        self.conclusion.observe_late()
        step: Any = SimpleNamespace(
            ended=True, number=5, verdict=verdict, refused="bad", seen=None, held=None,
            event=lambda used: StepFinished(loss=1.0), held_bytes=lambda reserves: None,
        )  # fmt: skip
        self.conclusion.step = step
        self.conclusion.journal()

    def _take(self, event: StepFinished) -> list[str]:
        self.taken_on.append(threading.current_thread().name)
        return ["alert"]


def test_the_detector_sees_a_step_beside_the_backward_pass_of_the_next_one() -> None:
    scene = LateScene()
    assert scene.told == ["StepFinished"]
    scene.conclusion.observe_aside()
    scene.conclusion.observe()
    assert scene.told == ["StepFinished", "follow ['alert']"]
    assert scene.taken_on == ["detector"]
    scene.conclusion.observe()
    assert len(scene.told) == 2


def test_a_recovery_that_is_found_late_drops_the_step_in_progress() -> None:
    scene = LateScene()
    scene.alarms = True
    scene.conclusion.observe_aside()
    assert "drop" not in scene.told
    scene.conclusion.observe()
    assert scene.told[-1] == "drop"


def test_a_conclusion_at_a_boundary_waits_for_the_detector_or_runs_it_itself() -> None:
    for aside in (False, True):
        scene = LateScene()
        if aside:
            scene.conclusion.observe_aside()
        scene.conclusion.conclude()
        assert scene.told == ["StepFinished", "follow ['alert']"]
        assert scene.taken_on == ["detector" if aside else threading.main_thread().name]


def test_a_refused_update_is_followed_at_once() -> None:
    scene = LateScene(UpdateVerdict.HALT)
    assert scene.told == ["StepFinished", "follow ['alert']", "halt"]
