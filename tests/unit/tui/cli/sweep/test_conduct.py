"""A sweep with a study of Optuna and runs that only have a journal."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from fttui.engine.errors import ConfigError, FttuiError, ModelError
from fttui.engine.protocol.events import EvalFinished, RunEnded, StepFinished
from fttui.engine.protocol.states import RunState
from fttui.engine.run.run_dir import RunDirectory
from fttui.tui.cli.sweep import conduct, trial_run
from fttui.tui.cli.sweep.conduct import SweepTelling, TrialLoop, TrialStarter
from fttui.tui.cli.sweep.study import OpenTrial, Study
from fttui.tui.cli.sweep.sweep_folder import SweepFolder, new_sweep_folder
from fttui.tui.cli.sweep.trial_run import Followed, follow
from fttui.tui.view_model.sweep.search_space import Axis, parse_space
from fttui.tui.view_model.sweep.sweep_plan import (
    Pruner,
    Sampler,
    SweepPlan,
    TrialResult,
    best_of,
    failures,
)
from fttui.tui.view_model.sweep.trial_record import TrialRecord
from tests.support.engine_double import EngineDouble, make_run

STEPS = 6
Curve = Callable[[Mapping[str, str], int], float]


class Journals:
    """Makes the journal of each trial at once: an evaluation after each step."""

    def __init__(self, root: Path, curve: Curve) -> None:
        self.root = root
        self.curve = curve
        self.started: list[dict[str, str]] = []

    def start(self, overrides: list[str]) -> RunDirectory:
        values = dict(text.split("=", 1) for text in overrides)
        self.started.append(values)
        if values["adapter.r"] == "999":
            raise ModelError("it does not fit in memory\nuse less")
        engine = EngineDouble(make_run(self.root, name=values["name"]))
        engine.start()
        for step in range(1, STEPS + 1):
            engine.step = step
            value = self.curve(values, step)
            engine.emit(StepFinished(loss=value), EvalFinished(metrics={"loss": value}))
        engine.emit(RunEnded(state=RunState.FINISHED, exit_code=0))
        engine.run.engine.unlink()
        engine.journal.close()
        return engine.run

    def take_up(self, run: RunDirectory) -> bool:
        raise AssertionError(f"{run} was not interrupted")


def at_once(
    run: RunDirectory, record: TrialRecord, tell: Callable[[TrialRecord, bool], str]
) -> Followed:
    """Read a journal as `follow` does, but stop the trial at once where it has to end."""
    from fttui.engine.run.records.record_feed import read_whole

    for one in read_whole(run)[0]:
        if record.take(one) and tell(record, True):
            break
    record.ended = RunEnded(state=RunState.FINISHED, exit_code=0)
    return Followed(record)


def plan(trials: int, pruner: Pruner = "none", sampler: Sampler = "tpe") -> SweepPlan:
    return SweepPlan(
        name="mine", config="c.yaml", words=[], trials=trials, steps=STEPS, by="eval.loss",
        every=1, sampler=sampler, pruner=pruner,
    )  # fmt: skip


class Scene:
    """A sweep in a folder."""

    def __init__(self, root: Path, words: list[str], curve: Curve) -> None:
        self.root = root
        self.space: tuple[Axis, ...] = parse_space(words, lambda key: key == "adapter.r")
        self.runs = Journals(root, curve)
        self.folder: SweepFolder = new_sweep_folder(root, "mine")
        self.told: list[TrialResult] = []
        self.training: list[int] = []
        """The number of trials that train after each result."""
        self.broke: list[tuple[int | None, str, list[int]]] = []

    def train(
        self,
        wanted: SweepPlan,
        deadline: float | None = None,
        starters: Sequence[TrialStarter] = (),
    ) -> str:
        telling = SweepTelling(lambda trial, record: None, self._finished, self._broke)
        study, each = Study(self.folder, wanted, self.space), starters or [self.runs]
        return TrialLoop(wanted, self.space, study, each, self.root, telling).run(deadline)

    def _finished(self, one: TrialResult, training: int) -> None:
        self.told.append(one)
        self.training.append(training)

    def _broke(self, trial: OpenTrial | None, error: Exception, training: Sequence[int]) -> None:
        self.broke.append((trial.number if trial else None, str(error), list(training)))

    def results(self) -> list[TrialResult]:
        return Study(self.folder, plan(1), self.space).results()


@pytest.fixture(autouse=True)
def follow_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conduct, "follow", at_once)


def rate(values: Mapping[str, str], step: int) -> float:
    return float(values["train.lr"]) / step


def test_a_sweep_finds_the_best_and_goes_on_with_more_trials(tmp_path: Path) -> None:
    scene = Scene(tmp_path, ["train.lr=0.1..1", "adapter.r=4,8"], rate)
    assert scene.train(plan(4)) == ""
    assert [one.number for one in scene.told] == [1, 2, 3, 4]
    first = [one.values for one in scene.results()]
    assert scene.train(plan(6)) == ""
    assert [one.values for one in scene.results()][:4] == first
    assert len({one.values["train.lr"] for one in scene.results()}) == 6
    best = best_of("eval.loss", scene.results())
    assert best is not None
    assert best.score == min(float(one.values["train.lr"]) / STEPS for one in scene.results())
    assert scene.runs.started[0]["train.steps"] == str(STEPS)
    assert (tmp_path / best.run / "run.json").exists()


@pytest.mark.long
def test_a_grid_trains_each_combination_once(tmp_path: Path) -> None:
    scene = Scene(tmp_path, ["train.lr=0.1..0.3:0.1", "adapter.r=4,8"], rate)
    assert scene.train(plan(99, sampler="grid")) == ""
    assert len({tuple(one.values.items()) for one in scene.results()}) == 6
    assert len(scene.runs.started) == 6


@pytest.mark.long
def test_settings_that_were_tried_are_not_trained_again(tmp_path: Path) -> None:
    scene = Scene(tmp_path, ["train.lr=0.1,0.2", "adapter.r=4,8"], rate)
    scene.train(plan(4, sampler="random"))
    assert len(scene.runs.started) == 4
    again = [one for one in scene.results() if one.same_as]
    assert all(one.score == scene.results()[one.same_as - 1].score for one in again)


def test_a_bad_trial_ends_early_and_counts_as_such(tmp_path: Path) -> None:
    scene = Scene(tmp_path, ["train.lr=0.1,0.2,0.3,0.4,9", "adapter.r=4,8"], rate)
    scene.train(plan(10, "median", "grid"))
    early = [one for one in scene.results() if one.state == "pruned"]
    assert "9" in {one.values["train.lr"] for one in early}
    assert all(one.step < STEPS and "worse than others" in one.why for one in early)


def test_a_trial_that_cannot_start_fails_alone(tmp_path: Path) -> None:
    scene = Scene(tmp_path, ["train.lr=0.1,0.2", "adapter.r=4,999"], rate)
    assert scene.train(plan(4, sampler="grid")) == ""
    assert failures(scene.results()) == {"memory": 2}
    assert {one.why for one in scene.results() if one.failure} == {"it does not fit in memory"}
    assert best_of("eval.loss", scene.results()) is not None


def test_a_sweep_whose_first_trials_all_fail_ends(tmp_path: Path) -> None:
    scene = Scene(tmp_path, ["train.lr=0.1..0.2", "adapter.r=4,8"], rate)

    def refused(overrides: list[str]) -> RunDirectory:
        raise ConfigError("no")

    start, scene.runs.start = scene.runs.start, refused  # type: ignore[method-assign]
    assert "the first 5 trials failed" in scene.train(plan(20))
    assert failures(scene.results()) == {"settings": 5}
    scene.runs.start = start  # type: ignore[method-assign]
    assert scene.train(plan(6)) == ""  # its cause is mended, and the sweep goes on
    assert best_of("eval.loss", scene.results()) is not None


def test_no_trial_begins_after_the_time_limit(tmp_path: Path) -> None:
    scene = Scene(tmp_path, ["train.lr=0.1,0.2", "adapter.r=4,8"], rate)
    assert "with 4 trials left" in scene.train(plan(4), deadline=time.monotonic() - 1)
    assert scene.results() == []


def test_a_small_space_is_trained_whole_whatever_the_sampler_proposes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conduct, "_MOST_REPEATS", 3)
    monkeypatch.setattr(conduct, "_FEW_REPEATS", 2)
    scene = Scene(tmp_path, ["train.lr=0.1..0.6:0.1", "adapter.r=4,8"], rate)
    assert scene.train(plan(12, sampler="random")) == ""
    assert len({tuple(one.values.values()) for one in scene.results()}) == 12
    assert len(scene.runs.started) == 12


class Meeting:
    """Starts the runs of trials once another device starts one, too."""

    def __init__(self, runs: Journals, barrier: threading.Barrier) -> None:
        self._runs = runs
        self._barrier = barrier
        self.started: list[str] = []

    def start(self, overrides: list[str]) -> RunDirectory:
        self._barrier.wait(20)
        self.started.append(overrides[0])
        return self._runs.start(overrides)

    def take_up(self, run: RunDirectory) -> bool:
        raise AssertionError(f"{run} was not interrupted")


def test_trials_train_side_by_side_each_once(tmp_path: Path) -> None:
    scene = Scene(tmp_path, ["train.lr=0.1..1", "adapter.r=4,8"], rate)
    barrier = threading.Barrier(2)
    devices = [Meeting(scene.runs, barrier), Meeting(scene.runs, barrier)]
    assert scene.train(plan(6), starters=devices) == ""
    assert [len(one.started) for one in devices] == [3, 3]
    assert max(scene.training) == 1
    assert scene.training[-1] == 0
    assert sorted(one.number for one in scene.told) == [1, 2, 3, 4, 5, 6]
    assert [one.state for one in scene.results()] == ["complete"] * 6
    assert len({one.values["train.lr"] for one in scene.results()}) == 6


def test_settings_that_train_on_another_device_are_not_trained_twice(tmp_path: Path) -> None:
    scene = Scene(tmp_path, ["train.lr=0.1,0.2,0.3,0.4", "adapter.r=4,8"], rate)
    barrier = threading.Barrier(4)
    devices = [Meeting(scene.runs, barrier) for _ in range(4)]
    assert scene.train(plan(8, sampler="random"), starters=devices) == ""
    started = [(one["train.lr"], one["adapter.r"]) for one in scene.runs.started]
    assert len(started) == len(set(started)) == 8
    assert [one.state for one in scene.results() if not one.same_as] == ["complete"] * 8
    assert failures(scene.results()) == {}


def test_an_error_on_one_device_ends_the_sweep_after_the_trials_that_train(tmp_path: Path) -> None:
    scene = Scene(tmp_path, ["train.lr=0.1..1", "adapter.r=4,8"], rate)

    class Broken(Meeting):
        def start(self, overrides: list[str]) -> RunDirectory:
            raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        scene.train(plan(60), starters=[Broken(scene.runs, threading.Barrier(1)), scene.runs])
    assert len(scene.results()) < 60


def test_an_error_is_told_at_once_with_its_trial_and_the_others_are_concluded(
    tmp_path: Path,
) -> None:
    scene = Scene(tmp_path, ["train.lr=0.1..1", "adapter.r=4,8"], rate)
    trains, told = threading.Event(), threading.Event()

    class Slow(Meeting):
        def start(self, overrides: list[str]) -> RunDirectory:
            trains.set()
            assert told.wait(20)
            return super().start(overrides)

    class Broken(Meeting):
        def start(self, overrides: list[str]) -> RunDirectory:
            assert trains.wait(20)
            raise OSError("no space left")

    broke = scene._broke

    def tell(trial: OpenTrial | None, error: Exception, training: Sequence[int]) -> None:
        broke(trial, error, training)
        told.set()

    scene._broke = tell  # type: ignore[method-assign]
    alone = threading.Barrier(1)
    with pytest.raises(OSError, match="no space left"):
        scene.train(plan(9), starters=[Slow(scene.runs, alone), Broken(scene.runs, alone)])
    ((broken, why, training),) = scene.broke
    (ended,) = scene.told
    assert (broken, why, training) == (3 - ended.number, "no space left", [ended.number])
    assert ended.state == "complete"
    assert sorted(one.state for one in scene.results()) == ["complete", "open"]


def test_after_an_interruption_no_progress_is_told(tmp_path: Path) -> None:
    scene = Scene(tmp_path, ["train.lr=0.1..1", "adapter.r=4,8"], rate)
    wanted, told = plan(2), []
    study = Study(scene.folder, wanted, scene.space)
    telling = SweepTelling(lambda trial, _: told.append(trial), scene._finished, scene._broke)
    loop = TrialLoop(wanted, scene.space, study, [scene.runs] * 2, tmp_path, telling)
    loop._trial(scene.runs, study.next_trial(), None)
    assert told
    told.clear()
    loop._leaving.set()
    loop._trial(scene.runs, study.next_trial([1]), None)
    assert told == []


def test_an_error_outside_a_trial_is_told_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(study: Study, training: object, *, untried: bool) -> OpenTrial:
        raise OSError("no space left")

    monkeypatch.setattr(Study, "next_trial", full)
    scene = Scene(tmp_path, ["train.lr=0.1..1"], rate)
    with pytest.raises(OSError, match="no space left"):
        scene.train(plan(9))
    assert scene.broke == [(None, "no space left", [])]


def test_an_interrupted_trial_is_taken_up_first(tmp_path: Path) -> None:
    scene = Scene(tmp_path, ["train.lr=0.1,0.2", "adapter.r=4,8"], rate)
    trial = Study(scene.folder, plan(4), scene.space).next_trial()
    run = scene.runs.start(["name=x", "train.lr=0.1", "adapter.r=4"])
    trial.began(run.id)
    taken: list[str] = []
    scene.runs.take_up = lambda run: not taken.append(run.id)  # type: ignore[method-assign,func-returns-value]
    scene.train(plan(1))
    assert taken == [run.id]
    assert [(one.number, one.run, one.state) for one in scene.results()] == [
        (1, run.id, "complete"),
    ]  # fmt: skip


def test_only_one_process_trains_the_trials(tmp_path: Path) -> None:
    scene = Scene(tmp_path, ["train.lr=0.1,0.2"], rate)
    held = scene.folder.locked()
    with scene.folder.locked(), pytest.raises(FttuiError, match="another process"):
        held.__enter__()


def test_a_trial_whose_journal_is_damaged_in_the_middle_is_followed_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_run, "_GRACE_S", 0.0)
    run = Journals(tmp_path, lambda values, step: 1.0 / step).start(["name=a", "adapter.r=1"])
    whole = run.journal.read_bytes()
    hit = len(whole) // 2
    run.journal.write_bytes(whole[:hit] + bytes([whole[hit] ^ 0xFF]) + whole[hit + 1 :])
    record = TrialRecord("eval.loss", 1)
    found = follow(run, record, lambda record, new: "")
    assert not found.lost
    assert found.record.ended is not None
