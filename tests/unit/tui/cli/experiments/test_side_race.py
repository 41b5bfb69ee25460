"""Variants that train side by side, on trainers that are pure functions of their states."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from fttui.engine.errors import EngineGone, FttuiError, TrainingFailed
from fttui.engine.protocol.commands import AddNote, AnyCommand
from fttui.engine.protocol.races.variant_step import VariantStep, variant_steps
from fttui.engine.protocol.settings import RunSettings
from fttui.tui.cli.experiments.conduct import Race, Telling
from fttui.tui.cli.experiments.run_driver import Applied, Progress, TrainedSteps
from fttui.tui.cli.experiments.side_by_side import _telling
from fttui.tui.cli.experiments.side_race import DevicesRace, SideRace, largest_gap
from fttui.tui.view_model.race.race_state import RaceState, VariantState
from tests.support.engine_double import make_run

from .test_conduct import Model, State

WORDS = ["lr=1e-3,3e-3,9e-3,2e-2,5e-2"]


class Loss(Model):
    """A trainer whose engine can be lost at a learning rate."""

    def __init__(self, lost_at: str, meet: Callable[[], object]) -> None:
        super().__init__()
        self.lost_at = lost_at
        self.meet = meet

    def until_held(self, target: int, progress: Progress) -> TrainedSteps:
        self.meet()
        if f"{self.rate:.3g}" == self.lost_at:
            raise EngineGone("the engine was lost")
        return super().until_held(target, progress)


class Device:
    """A device with such a trainer, which starts at the base of the race."""

    def __init__(
        self,
        number: int,
        state: RaceState,
        others: dict[str, Model],
        *,
        lost_at: str = "",
        broken: bool = False,
        meet: Callable[[], object] = lambda: None,
    ) -> None:
        self.device = f"GPU {number}"
        self.place = ""
        self.starts = self.ends = self.fetched = 0
        self.closed = False
        self._number, self._state, self._others = number, state, others
        self._lost_at, self._broken, self._meet = lost_at, broken, meet
        self._model: Loss | None = None

    def track(self) -> Model:
        if self._broken:
            raise FttuiError("out of memory")
        if self._model is None:
            self.starts += 1
            self.place = f"side-{self._number}-{self.starts}"
            self._model = Loss(self._lost_at, self._meet)
            self._model.checkpoints[self._state.base] = State(), self._state.before
            self._others[self.place] = self._model
        return self._model

    def fetch(self, place: str, checkpoint: str) -> str:
        if place == self.place:
            return checkpoint
        self.fetched += 1
        assert self._model is not None
        name = f"{place}-{checkpoint}"
        self._model.checkpoints[name] = self._others[place].checkpoints[checkpoint]
        return name

    def end(self, *, for_good: bool = False) -> None:
        self.ends += self._model is not None
        self._model = None
        self.closed |= for_good


def begun(words: Sequence[str] = WORDS, steps: int = 80) -> RaceState:
    before = RunSettings(clip=1.0, paused=True)
    state = RaceState(words=list(words), steps=steps, by="eval.loss", base="base", base_step=400,
                      before=before, devices=["0", "1"])  # fmt: skip
    state.variants = [VariantState(step=400) for _ in state.plan]
    return state


def telling(finished: Callable[[int], None] = lambda _: None) -> Telling:
    return Telling(lambda: None, lambda *_: None, finished, threading.RLock())


def serial(words: Sequence[str] = WORDS, steps: int = 80) -> RaceState:
    state = RaceState(words=list(words), steps=steps, by="eval.loss")
    race = Race(state, Model(), Telling(lambda: None, lambda *_: None, lambda _: None))
    race.prepare(None)
    race.run()
    return state


def test_devices_find_what_the_run_alone_finds() -> None:
    state, others = begun(), dict[str, Model]()
    devices = [Device(n, state, others) for n in (0, 1)]
    SideRace(state, devices, telling()).run()
    want = serial()
    assert [(v.losses, v.score, v.rounds, v.beaten, v.step) for v in state.variants] == [
        (v.losses, v.score, v.rounds, v.beaten, v.step) for v in want.variants
    ]
    assert state.best == want.best
    assert state.against(1, 0) == want.against(1, 0)
    assert all(one.closed and one.starts <= 1 for one in devices)


def test_two_variants_train_at_the_same_time() -> None:
    together = threading.Barrier(2, timeout=10)
    state, others = begun(["lr=1e-3,3e-3"], steps=30), dict[str, Model]()
    devices = [Device(n, state, others, meet=together.wait) for n in (0, 1)]
    SideRace(state, devices, telling()).run()
    assert sorted(one.device for one in state.variants) == ["GPU 0", "GPU 1"]


def test_a_lost_engine_loses_its_variant_only_and_another_engine_starts() -> None:
    state, others = begun(), dict[str, Model]()
    device = Device(0, state, others, lost_at="0.009")
    SideRace(state, [device], telling()).run()
    assert [bool(one.failed) for one in state.variants] == [False, False, True, False, False]
    assert state.variants[2].failed == "the engine was lost"
    assert device.starts == 2
    assert device.fetched > 0  # checkpoints from before the loss
    assert state.best == 1


def test_a_device_without_an_engine_is_left_out() -> None:
    state, others = begun(), dict[str, Model]()
    left: list[tuple[str, str]] = []
    known = threading.Event()

    def left_out(device: str, why: str) -> None:
        left.append((device, why))
        known.set()

    tell = Telling(
        lambda: None, lambda *_: None, lambda _: None, threading.RLock(), left_out=left_out
    )
    broken = Device(1, state, others, broken=True)
    good = Device(0, state, others, meet=lambda: known.wait(10))
    SideRace(state, [good, broken], tell).run()
    assert left == [("GPU 1", "out of memory")]
    assert state.best == 1
    assert not any(one.failed for one in state.variants)


def test_a_race_without_any_engine_ends_with_the_reasons() -> None:
    state, others = begun(), dict[str, Model]()
    devices = [Device(n, state, others, broken=True) for n in (0, 1)]
    with pytest.raises(TrainingFailed, match="GPU 0: out of memory"):
        SideRace(state, devices, telling()).run()
    assert all(one.rounds == 0 and not one.failed for one in state.variants)


def test_an_error_on_a_thread_ends_the_race_and_its_engines() -> None:
    state, others = begun(), dict[str, Model]()

    def full(_: int) -> None:
        raise OSError("no space left")

    devices = [Device(n, state, others) for n in (0, 1)]
    with pytest.raises(OSError, match="no space left"):
        SideRace(state, devices, telling(full)).run()
    assert all(one.closed for one in devices)


def test_an_interrupted_race_continues_with_what_its_rounds_have_found() -> None:
    state, others = begun(), dict[str, Model]()
    race: list[SideRace] = []

    def interrupt(_: int) -> None:
        if sum(one.rounds for one in state.variants) == 2:
            race[0]._leave()

    device = Device(0, state, others)
    race.append(SideRace(state, [device], telling(interrupt)))
    race[0]._waiting = state.waiting(0)
    race[0]._work(device, 420)
    assert [one.rounds for one in state.variants] == [1, 1, 0, 0, 0]
    SideRace(state, [Device(1, state, others)], telling()).run()
    assert [one.losses for one in state.variants] == [one.losses for one in serial().variants]


def conducted(state: RaceState, model: Model, *, releases: bool = False) -> DevicesRace:
    others: dict[str, Model] = {}
    devices = [Device(n, state, others) for n in (0, 1)]
    return DevicesRace(state, model, telling(), devices, releases=releases)


def raced(model: Model, *, releases: bool = False) -> tuple[RaceState, DevicesRace]:
    state = RaceState(words=WORDS, steps=80, by="eval.loss", devices=["0", "1"])
    race = conducted(state, model, releases=releases)
    race.prepare(None)
    race.run()
    return state, race


def test_the_run_trains_the_winner_again_and_has_its_settings() -> None:
    model = Model()
    state, race = raced(model)
    assert model.trained == []
    race.go_on(state.best)
    assert state.repeated_gap == 0
    assert (state.kept, state.ended) == (1, True)
    assert (model.state.step, f"{model.rate:.3g}") == (480, "0.003")
    assert state.variants[1].place == ""
    assert state.variants[1].checkpoint in model.checkpoints
    assert [step for step, _ in model.trained] == list(range(401, 481))


class Noting(Model):
    """A run that keeps the curves that it is sent, each with the timeline on which it stands."""

    def __init__(self) -> None:
        super().__init__()
        self.curves: list[tuple[int, str, tuple[VariantStep, ...]]] = []

    def send(self, command: AnyCommand, reason: str) -> Applied:
        if isinstance(command, AddNote) and command.steps:
            self.curves.append((self.state.timeline, command.text, command.steps))
        return super().send(command, reason)


def test_the_curves_of_the_others_are_journaled_each_on_a_timeline_of_its_own() -> None:
    model = Noting()
    state, race = raced(model)
    race.go_on(state.best)
    others = [n for n in range(5) if n != state.kept]
    for n, (_, _, steps) in zip(others, model.curves, strict=True):
        assert {one.variant for one in steps} == {state.plan[n].label}
        assert {one.at: one.loss for one in steps} == state.variants[n].losses
        assert steps[-1].metrics == state.variants[n].evaluations[steps[-1].at]
    timelines = [timeline for timeline, _, _ in model.curves]
    assert timelines == [state.variants[n].timelines[-1] for n in others]
    assert len(set(timelines)) == len(others)
    assert model.state.timeline > max(timelines), "the winner is trained after them"
    assert model.curves[0][1] == "race, variant 1 of 5: lr 1e-3, trained on GPU 0"
    race.go_on(state.best)  # as after an interruption
    assert len(model.curves) == len(others)


def test_a_long_curve_is_journaled_with_several_notes_of_which_the_first_has_a_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fttui.tui.cli.experiments.side_race.MOST_STEPS", 15)
    model = Noting()
    state, race = raced(model)
    race.go_on(state.best)
    first = state.variants[0].timelines[-1]
    parts = [(bool(text), len(steps)) for on, text, steps in model.curves if on == first]
    assert parts[0] == (True, 15)
    assert not any(told for told, _ in parts[1:])
    assert max(count for _, count in parts) == 15
    assert sum(count for _, count in parts) == len(state.variants[0].losses)


def test_steps_with_an_evaluation_alone_are_steps_of_a_variant_too() -> None:
    steps = variant_steps("lr 1", {1: 2.0, 3: 1.0}, {2: {"loss": 1.5}, 3: {"loss": 1.25}})
    assert steps == (
        VariantStep(variant="lr 1", at=1, loss=2.0),
        VariantStep(variant="lr 1", at=2, metrics={"loss": 1.5}),
        VariantStep(variant="lr 1", at=3, loss=1.0, metrics={"loss": 1.25}),
    )


def test_a_difference_of_the_second_training_is_noted() -> None:
    model = Model()
    state, race = raced(model)
    state.variants[1].losses[480] += 0.5
    race.go_on(1)
    assert state.repeated_gap == pytest.approx(0.5)
    assert largest_gap(VariantState(losses={1: 2.0}), VariantState()) == float("inf")


def test_without_a_winner_the_run_returns_to_the_start() -> None:
    model = Model()
    state, race = raced(model)
    race.go_on(None)
    assert model.trained == []
    assert (model.state.step, f"{model.rate:.3g}") == (400, "0.001")
    assert state.ended


def test_the_memory_of_the_run_is_free_while_others_train() -> None:
    model = Model()
    state, race = raced(model, releases=True)
    assert model.sent[-1] == "pause release"
    race.go_on(state.best)
    assert model.sent[model.sent.index("pause release") + 1] == "pause"


def test_a_second_training_that_fails_is_an_error_that_names_both_places() -> None:
    model = Model()
    state, race = raced(model)
    model.halts_above = 0.0
    with pytest.raises(TrainingFailed, match="not again in the run: halted"):
        race.go_on(state.best)
    assert not state.ended


def test_the_progress_of_the_second_training_is_cleared_before_the_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setenv("TERM", "xterm")
    state = begun()
    state.running = 0
    tell = _telling(make_run(tmp_path), state, threading.RLock(), lambda _: None)
    tell.progress(0, TrainedSteps(step=480), 480)
    assert terminal.getvalue().rstrip().endswith("100%")
    state.running = None
    tell.save()
    assert terminal.getvalue().endswith("\r\x1b[K")
