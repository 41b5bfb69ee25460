"""A race on a trainer that is a pure function of its state, as an exact rollback makes a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec
import pytest

from fttui.engine.core.settings import SettingsContext, apply_setting
from fttui.engine.errors import CommandRejected
from fttui.engine.protocol.commands import (
    AnyCommand,
    Evaluate,
    Resume,
    Rollback,
    RunSteps,
    SaveCheckpoint,
    SettingCommand,
    Stop,
    describe_command,
)
from fttui.engine.protocol.settings import RunSettings
from fttui.tui.cli.experiments.conduct import Race, Telling
from fttui.tui.cli.experiments.run_driver import Applied, Progress, RunLeft, TrainedSteps
from fttui.tui.view_model.race.race_state import RaceState

SCHEDULE = 1e-3
BEST = 3e-3


@dataclass(frozen=True)
class State:
    step: int = 400
    weight: float = 10.0
    timeline: int = 1


class Model:
    """A weight that falls fastest at the learning rate BEST."""

    def __init__(self, settings: RunSettings = RunSettings(clip=1.0)) -> None:  # noqa: B008 - frozen
        self.settings = settings
        self.state = State()
        self.newest_timeline = 1
        self.checkpoints: dict[str, tuple[State, RunSettings]] = {}
        self.sent: list[str] = []
        self.trained: list[tuple[int, str]] = []
        self.evaluation: dict[str, float] = {}
        self.dies_at: int | None = None
        self.halts_above = 1.0
        self.target = 0
        self.percentile: float | None = None

    @property
    def rate(self) -> float:
        return SCHEDULE * self.settings.lr_scale

    def send(self, command: AnyCommand, reason: str) -> Applied:
        self.sent.append(describe_command(command))
        new = ""
        match command:
            case SaveCheckpoint():
                new = f"c{len(self.checkpoints)}"
                self.checkpoints[new] = self.state, self.settings
            case Rollback(checkpoint=name):
                self.newest_timeline += 1
                self.state = replace(self.checkpoints[name][0], timeline=self.newest_timeline)
            case Evaluate():
                self.evaluation = {"loss": self.state.weight}
            case Resume() | Stop():
                pass
            case _ if isinstance(command, SettingCommand):
                if isinstance(command, RunSteps):
                    self.target = self.state.step + command.steps
                context = SettingsContext(self.state.step, SCHEDULE, lambda share: self.percentile)
                try:
                    self.settings = apply_setting(self.settings, command, context).settings
                except ValueError as error:
                    raise CommandRejected(str(error)) from None
            case _:
                pass
        return Applied(self.state.step, self.state.timeline, new, self.settings)

    def until_held(self, target: int, progress: Progress) -> TrainedSteps:
        assert target == self.target
        found = TrainedSteps(step=self.state.step)
        while self.state.step < target:
            if self.dies_at is not None and len(self.trained) == self.dies_at:
                raise RunLeft("the engine was lost")
            gain = 0.02 / (1 + abs(self.rate - BEST) / BEST)
            step = self.state.step + 1
            self.state = replace(self.state, step=step, weight=self.state.weight * (1 - gain))
            self.trained.append((step, f"{self.rate:.3g}"))
            if self.rate > self.halts_above:
                found.step, found.halted = step, f"halted after step {step}: nan"
                return found
            found.step, found.losses[step] = step, self.state.weight + (step % 7)
            progress(found)
        self.settings = msgspec.structs.replace(self.settings, paused=True, pause_at_step=None)
        return found


def conducted(model: Model, state: RaceState, save: Callable[[], None] = lambda: None) -> Race:
    return Race(state, model, Telling(save, lambda *_: None, lambda _: None))


def begun(words: list[str], by: str = "eval.loss", steps: int = 80) -> RaceState:
    return RaceState(words=words, steps=steps, by=by)


def test_the_run_goes_on_with_the_best_variant_and_its_settings() -> None:
    model, state = Model(), begun(["lr=1e-3,3e-3,9e-3,2e-2"])
    race = conducted(model, state)
    race.prepare(None)
    race.run()
    assert state.best == 1
    race.go_on(state.best)
    assert (model.state.step, f"{model.rate:.3g}") == (480, "0.003")
    assert model.sent[-1] == "resume"
    alone = Model()
    alone.settings = msgspec.structs.replace(alone.settings, lr_scale=3.0)
    alone.target = 480
    alone.until_held(480, lambda _: None)
    assert model.state.weight == alone.state.weight


def test_bad_variants_leave_early_and_every_variant_starts_from_the_same_state() -> None:
    model, state = Model(), begun(["lr=1e-3,3e-3,9e-3,2e-2"])
    race = conducted(model, state)
    race.prepare(None)
    race.run()
    assert len(model.trained) == 4 * 40 + 2 * 40
    assert [one.beaten for one in state.variants] == [False, False, True, True]
    assert {min(one.losses) for one in state.variants} == {401}
    assert len({t for one in state.variants for t in one.timelines}) == 6


def test_the_timeline_of_a_variant_is_stored_before_its_first_step() -> None:
    model, state = Model(), begun(["lr=1e-3,3e-3"], steps=20)
    stored: list[int] = []

    def save() -> None:
        if state.running is not None and state.variants[state.running].timelines:
            stored.append(len(model.trained))

    race = conducted(model, state, save)
    race.prepare(None)
    race.run()
    assert 0 in stored
    assert 20 in stored


def test_all_settings_of_all_variants_are_as_they_were_when_the_run_goes_back() -> None:
    model = Model(RunSettings(lr_scale=0.5, clip=0.7, clip_percentile=90.0, autopilot="act"))
    before = model.settings
    state = begun(["lr=1e-3,3e-3", "clip=0.1,0.2"])
    model.percentile = 0.7
    context = conducted(model, state)
    context.prepare(None)
    assert model.settings.autopilot == "off"
    context.run()
    context.go_on(None)
    fields = ("lr_scale", "clip", "clip_percentile", "autopilot")
    assert [getattr(model.settings, f) for f in fields] == [getattr(before, f) for f in fields]
    assert model.state.step == 400


@pytest.mark.parametrize("dies_at", [0, 1, 39, 40, 41, 100, 165, 239])
def test_an_interrupted_race_goes_on_and_ends_as_if_nothing_had_happened(dies_at: int) -> None:
    words = ["lr=1e-3,3e-3,9e-3,2e-2"]
    straight = begun(words)
    race = conducted(Model(), straight)
    race.prepare(None)
    race.run()

    model, state, stored = Model(), begun(words), [b""]
    race = conducted(model, state, lambda: stored.append(msgspec.json.encode(state)))
    race.prepare(None)
    model.dies_at = dies_at
    with pytest.raises(RunLeft):
        race.run()
    model.dies_at = None
    found = msgspec.json.decode(stored[-1], type=RaceState)
    assert found.running is not None
    conducted(model, found).run()
    assert found.best == straight.best
    assert [v.losses for v in found.variants] == [v.losses for v in straight.variants]
    assert [v.score for v in found.variants] == [v.score for v in straight.variants]


def test_a_variant_that_halts_leaves_and_the_next_ones_are_not_disturbed() -> None:
    words = ["lr=1e-3,9,3e-3"]
    model, state = Model(), begun(words)
    race = conducted(model, state)
    race.prepare(None)
    race.run()
    assert state.variants[1].failed == "halted after step 401: nan"
    assert state.best == 2
    assert [rate for _, rate in model.trained].count("9") == 1


def test_settings_that_cannot_be_applied_end_a_variant_and_not_the_race() -> None:
    model, state = Model(), begun(["clip=1,p90"])
    race = conducted(model, state)
    race.prepare(None)
    race.run()
    assert "percentile" in state.variants[1].failed
    assert state.best == 0


def test_a_race_by_training_loss_evaluates_nothing() -> None:
    model, state = Model(), begun(["lr=1e-3,3e-3"], by="loss")
    race = conducted(model, state)
    race.prepare(None)
    race.run()
    assert "eval" not in model.sent
    assert state.best == 1


def test_a_race_begins_at_a_checkpoint() -> None:
    model, state = Model(), begun(["lr=1e-3,3e-3"])
    model.send(SaveCheckpoint(), "")
    model.state = replace(model.state, step=450, weight=3.0)
    race = conducted(model, state)
    race.prepare("c0")
    assert (state.base_step, state.base) == (400, "c1")
    race.run()
    assert {max(one.losses) for one in state.variants} == {480}


@pytest.mark.parametrize(("then", "last"), [("go", "resume"), ("stop", "stop")])
def test_afterwards_the_run_trains_on_or_stops(then: str, last: str) -> None:
    model, state = Model(), begun(["lr=1e-3,3e-3"])
    state.then = then  # type: ignore[assignment]
    race = conducted(model, state)
    race.prepare(None)
    race.run()
    race.go_on(0)
    assert model.sent[-1] == last
    assert f"{model.rate:.3g}" == "0.001"


def test_afterwards_a_paused_run_stays_paused() -> None:
    model, state = Model(), begun(["lr=1e-3,3e-3"])
    state.then = "pause"
    race = conducted(model, state)
    race.prepare(None)
    race.run()
    race.go_on(1)
    assert model.settings.paused
    assert state.ended
