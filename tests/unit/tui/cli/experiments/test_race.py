"""The command line of a race: what it prints before and after, and what it refuses."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from fttui.engine.protocol.events import (
    CheckpointSaved,
    EvalFinished,
    RunEnded,
    StepFinished,
)
from fttui.engine.protocol.settings import LearningRate
from fttui.engine.protocol.states import RunState
from fttui.engine.protocol.usage.amounts import Budget, Price, Usage
from fttui.engine.protocol.usage.tally import UsageTally
from fttui.engine.run.checkpoint_store import Manifest
from fttui.engine.run.run_dir import RunDirectory
from fttui.tui.cli.experiments import race as race_module
from fttui.tui.cli.main import main
from fttui.tui.cli.run import tell_of_race
from fttui.tui.connection.race.measured import rate_at
from fttui.tui.connection.race.planning import plan_race
from fttui.tui.connection.race.race_file import race_file, race_lock, read_race, store_race
from fttui.tui.dialogs.race_text import (
    budget_line,
    cost_line,
    page_lines,
    plan_lines,
    side_lines,
    side_progress,
    table_lines,
    unfinished_lines,
    verdict_lines,
)
from fttui.tui.view_model.app_state import AppState
from fttui.tui.view_model.race.race_state import After, RaceState, VariantState
from fttui.tui.view_model.race.request import RaceRequest
from fttui.tui.view_model.race.rounds import MeasuredTimes, cost_of, plan_rounds
from fttui.tui.view_model.run_view import RunView
from tests.support.engine_double import EngineDouble, make_run


def raced(by: str = "eval.loss", gap: float = 0.05) -> RaceState:
    """A race of three variants that has ended; the second one won."""
    state = RaceState(words=["lr=1e-4,2e-4,9e-4"], steps=80, by=by, base="step-000400",
                      base_step=400, ended=True, kept=1)  # fmt: skip
    losses = {step: 2.0 + (step % 7) / 10 for step in range(401, 481)}
    rng = random.Random(0)
    wobble = {step: rng.gauss(0, 0.02) for step in losses}
    state.variants = [
        VariantState(rounds=2, step=480, score=1.95,
                     losses={s: v + gap + wobble[s] for s, v in losses.items()}),
        VariantState(rounds=2, step=480, score=1.9, losses=losses),
        VariantState(rounds=1, step=440, score=3.1, beaten=True, not_finite=1,
                     losses={s: v + 1 for s, v in losses.items() if s <= 440}),
    ]  # fmt: skip
    return state


def test_the_table_has_the_best_variant_first_and_what_became_of_each() -> None:
    head, best, second, left = table_lines(raced())
    assert head.split() == ["#", "variant", "steps", "eval.loss", "loss", "against", "best"]
    assert best.split()[:6] == ["1", "lr", "2e-4", "80", "1.900", "2.288"]
    assert best.endswith("–  kept")
    assert second.split()[:4] == ["2", "lr", "1e-4", "80"]
    assert second.split()[6].startswith("+0.0")
    assert second.split()[7] == "±"
    assert left.endswith("ended early; loss not finite in 1 step")


def test_a_clear_difference_is_beyond_chance_and_a_small_one_is_not() -> None:
    clear, small = list(verdict_lines(raced())), list(verdict_lines(raced(gap=0.0)))
    assert clear[0] == "best: lr 2e-4, eval.loss 1.900"
    assert "on the same 40 batches lower by 0.0" in clear[1]
    assert clear[1].endswith("chance does not explain this difference")
    assert "this difference may be chance" in small[1]


def test_losses_that_contradict_the_metric_are_told() -> None:
    assert "contradicts eval.loss" in list(verdict_lines(raced(gap=-0.5)))[1]


def test_changes_by_others_are_told_with_the_verdict() -> None:
    state = raced()
    state.variants[0].remarks = ["lr scale 0.5 by ada"]
    assert "1 change by others" in list(verdict_lines(state))[-1]


def test_no_score_at_all_is_no_verdict() -> None:
    state = raced()
    for one in state.variants:
        one.score = None
    assert list(verdict_lines(state)) == ["no variant has a finite eval.loss, so none is the best"]


def test_the_plan_warns_of_a_rate_that_is_likely_a_typing_error() -> None:
    state = RaceState(words=["lr=1e-4,1e-1"], steps=80, by="loss")
    lines = list(plan_lines(state, "mine", LearningRate(2e-4, 1.0), "step 400", "best"))
    assert lines[0].startswith("race of mine from step 400: 2 variants, compared by loss")
    assert lines[1].strip() == "1  lr 1e-4"
    assert "caution: the learning rate would be 0.1, ×500 the present" in lines[2]


@pytest.mark.parametrize(
    ("keep", "then", "said"),
    [
        ("best", "go", "settings of the best variant, and continues training"),
        (
            "none",
            "pause",
            "settings from before the first variant, and stays paused",
        ),
        ("2", "stop", "settings of variant 2, and stops"),
    ],
)
def test_the_plan_says_what_the_run_does_after_the_race(keep: str, then: After, said: str) -> None:
    state = RaceState(words=["lr=1e-4,2e-4"], steps=80, by="loss", then=then)
    *_, last = plan_lines(state, "mine", LearningRate(2e-4, 1.0), "step 400", keep)
    assert last.endswith(said)


def test_a_run_without_evaluation_data_is_not_raced_by_an_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FTTUI_RUNS", str(tmp_path))
    run = make_run(tmp_path)
    run.config.write_text(
        "name: mine\nmodel: {id: m}\ndata: {train: a.jsonl, eval_fraction: 0}\ntrain: {steps: 9}\n"
    )
    code = main(["race", run.id, "lr=1e-4,2e-4", "--by", "eval.loss"])
    assert code == 2
    assert "has no evaluation data; compare the training loss: --by loss" in capsys.readouterr().err


def test_the_cost_says_what_is_not_known() -> None:
    rounds = raced().rounds
    assert "time unknown" in cost_line(cost_of(rounds, MeasuredTimes(), evaluates=True))
    known = cost_line(cost_of(rounds, MeasuredTimes(0.5, 2.0, 1.0, 2**20), evaluates=True))
    assert known.startswith("cost: 200 steps, about 2 m 0 s, estimated from")
    assert known.endswith("6 pinned checkpoints, 6.0 MiB")
    parts = MeasuredTimes(step_s=0.5, start_s=0.0)
    by_loss, by_eval = (cost_line(cost_of(rounds, parts, evaluates=e)) for e in (False, True))
    assert "(without checkpoints, which are not measured yet)" in by_loss
    assert "(without checkpoints and evaluations, which are not measured yet)" in by_eval


def test_an_interrupted_race_says_in_which_variant_it_was() -> None:
    state = raced()
    state.ended, state.running = False, 2
    text = "\n".join(unfinished_lines(state, "mine"))
    assert "in variant 3 of 3 (lr 9e-4)" in text
    assert "fttui race mine --resume" in text
    assert "fttui race mine --cancel" in text


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    """A live run at step 50 of 100 that has measured its steps."""
    monkeypatch.setenv("FTTUI_RUNS", str(tmp_path))
    engine = EngineDouble(make_run(tmp_path), total_steps=100)
    engine.start()
    engine.emit(EvalFinished(metrics={"loss": 2.0}, seconds=3.0))
    engine.emit(CheckpointSaved(name="step-000000", size_bytes=2**20, seconds=1.0))
    for _ in range(50):
        engine.step += 1
        engine.emit(StepFinished(loss=2.0, step_s=0.5, lr=1e-4, lr_schedule=1e-4))
    return engine.run


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main(["race", *words])
    both = capsys.readouterr()
    return code, both.out + both.err


def test_a_race_is_not_begun_without_a_yes_but_its_cost_is_told(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = said(capsys, run.id, "lr=1e-4,2e-4", "clip=1,2", "--steps", "40", "--by", "loss")
    assert code == 2
    assert "4 variants" in text
    assert "cost: 120 steps, about 1 m 12 s" in text
    assert "add --yes" in text
    assert not race_file(run).exists()


def test_the_metric_of_the_evaluations_is_the_default_also_without_a_configuration(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    text = said(capsys, run.id, "lr=1e-4,2e-4", "--steps", "40")[1]
    assert "compared by eval.loss" in text
    assert "note:" not in text


def test_a_race_that_falls_back_to_the_training_loss_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FTTUI_RUNS", str(tmp_path))
    engine = EngineDouble(make_run(tmp_path), total_steps=100)
    engine.start()
    text = said(capsys, engine.run.id, "lr=1e-4,2e-4", "--steps", "40")[1]
    assert "note: compared by the training loss, because the configuration of" in text
    engine.run.config.write_text(
        "name: mine\nmodel: {id: m}\ndata: {train: a.jsonl, eval_fraction: 0}\ntrain: {steps: 9}\n"
    )
    text = said(capsys, engine.run.id, "lr=1e-4,2e-4", "--steps", "40")[1]
    assert f"because {engine.run.id} has no evaluation data; choose another" in text


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["lr=1e-4,2e-4", "--steps", "50"],
            "with its last step; give --steps 49 or fewer",
        ),
        (["lr=1e-4,2e-4", "--steps", "0"], "--steps must be a whole number"),
        (["lr=1e-4,2e-4", "--by", "accuracy"], "--by must be loss or eval.NAME"),
        (["lr=1e-4,2e-4", "--by", "eval.accuracy"], "have eval.loss; name one of them"),
        (["lr=1e-4,2e-4", "--keep", "3"], "a variant from 1 to 2; got 3"),
        (["--resume"], "no race that was interrupted"),
        (["--cancel"], "no race that was interrupted"),
        ([], "no settings to try"),
        (["lr=1e-4,2e-4", "--devices", "0,0"], "GPU 0 is there twice; two variants would share"),
        (["lr=1e-4,2e-4", "--devices", "99"], "there is no GPU 99"),
        (["lr=1e-4,2e-4", "--devices", "gpu"], "expected GPUs such as 0,1, or cpu"),
        (["momentum=0.1,0.2"], "can change while a run trains (lr, clip, weight_decay, dropout"),
    ],
)
def test_what_cannot_be_raced_is_refused(
    run: RunDirectory, capsys: pytest.CaptureFixture[str], words: list[str], expected: str
) -> None:
    code, text = said(capsys, run.id, *words)
    assert code == 2
    assert expected in text


def test_a_checkpoint_that_is_not_there_is_named(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = said(capsys, f"{run.id}@30", "lr=1e-4,2e-4")
    assert code == 10
    assert "no complete checkpoint '30'" in text


def test_another_race_waits_for_the_end_of_an_interrupted_one(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    state = raced()
    state.ended = False
    store_race(run, state)
    code, text = said(capsys, run.id, "lr=1e-4,2e-4")
    assert code == 1
    assert "was interrupted" in text


def test_the_plan_says_where_variants_train_and_that_the_run_trains_the_best_again() -> None:
    state = RaceState(words=["lr=1e-4,2e-4"], steps=80, by="loss", devices=["1", "cpu", "cpu"])
    text = "\n".join(plan_lines(state, "mine", LearningRate(2e-4, 1.0), "step 400", "best"))
    assert "side by side on GPU 1 and the processor (2 at a time), each in an engine" in text
    assert "with the memory of its GPU released; then it trains the steps of the best" in text


def on_devices() -> RaceState:
    state = raced()
    state.devices, state.repeated_gap = ["0", "1"], 0.0
    for n, one in enumerate(state.variants):
        one.device = f"GPU {n % 2}"
    state.side_usage = Usage(seconds=120.0, device_s=120.0, energy_j=36_000.0)
    return state


def test_the_results_say_whether_the_second_training_is_equal_and_what_devices_used() -> None:
    state = on_devices()
    equal, used = side_lines(state, Price(hour=3.0, currency="EUR"))
    assert equal == "the run trained its 80 steps again: every loss is that on GPU 1, bit by bit"
    assert "10 Wh" in used
    assert "which its meter and its budget do not count" in used
    state.repeated_gap = 0.0125
    assert "differ by up to 0.013 from those on GPU 1" in next(side_lines(state))
    assert list(side_lines(raced())) == []


def test_the_progress_names_each_variant_and_its_device() -> None:
    state = on_devices()
    state.variants[0].at, state.variants[2].at = 410, 404
    found = side_progress(state, 0, 410, 440)
    assert found.label == "of 3 variants: 1 on GPU 0 +10, 3 on GPU 0 +4 "
    assert (found.done, found.total) == (14, 80)
    state.running = 1
    assert side_progress(state, 1, 420, 480).label.startswith(
        "the run trains lr 2e-4 again  step 20"
    )


def test_an_interrupted_race_on_devices_says_that_the_run_waits_at_its_start() -> None:
    state = on_devices()
    state.ended, state.running = False, None
    text = "\n".join(unfinished_lines(state, "mine"))
    assert "the run is paused at its start, with the settings before it" in text


def test_the_devices_of_a_race_cannot_change(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    store_race(run, unfinished())
    code, text = said(capsys, run.id, "--resume", "--devices", "cpu,cpu")
    assert code == 2
    assert "--devices cannot change in a race that has begun" in text


def test_the_results_are_shown_again(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    store_race(run, raced())
    code, text = said(capsys, run.id)
    assert code == 0
    assert "best: lr 2e-4" in text
    assert read_race(run) == raced()


def test_a_damaged_file_says_how_to_go_on(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    race_file(run).write_text("{")
    code, text = said(capsys, run.id)
    assert code == 1
    assert "race.json is damaged" in text
    assert "remove it to start another race" in text


def test_the_run_of_another_machine_is_raced_there(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = said(capsys, "box:mine", "lr=1e-4,2e-4")
    assert code == 2
    assert "on the machine of its run" in text


def test_an_ended_run_needs_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FTTUI_RUNS", str(tmp_path))
    engine = EngineDouble(make_run(tmp_path), total_steps=100)
    engine.start()
    engine.emit(RunEnded(state=RunState.STOPPED, exit_code=0))
    engine.run.engine.unlink()
    code, text = said(capsys, engine.run.id, "lr=1e-4,2e-4", "--steps", "20")
    assert code == 10
    assert "no complete checkpoint" in text


def test_a_resume_says_in_which_variant_a_race_was_interrupted(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    state = raced()
    tell_of_race(run)
    store_race(run, state)
    tell_of_race(run)
    assert capsys.readouterr().out == ""
    state.ended, state.running = False, 0
    store_race(run, state)
    tell_of_race(run)
    told = capsys.readouterr().out
    assert "note: a race of" in told
    assert "in variant 1 of 3 (lr 1e-4)" in told


def test_a_race_says_what_it_takes_and_that_the_budget_ends_within_it() -> None:
    rounds = plan_rounds(2, 100, halving=False)
    per_s = Usage(seconds=1, device_s=2, energy_j=180.0)
    times = MeasuredTimes(0.5, 2.0, 1.0, 2**20, start_s=0.0, use_per_s=per_s)
    cost = cost_of(rounds, times, evaluates=False)
    price = Price(hour=36.0, currency="EUR")
    assert ", 5.2 Wh, 2.08 EUR; 3 pinned checkpoints" in cost_line(cost, price)
    half_an_hour = Usage(seconds=1800, device_s=3600)
    tight = UsageTally(price=price, budget=Budget(hours=0.52))
    assert budget_line(cost, half_an_hour, tight) == (
        "caution: the race will use up the budget (budget.hours: about 0.529 of 0.52 h after it), "
        "so the run will stop before the race ends"
    )
    assert budget_line(cost, half_an_hour, UsageTally(budget=Budget(hours=1))) == ""


def unfinished(keep: str = "best") -> RaceState:
    variants = [VariantState(step=4), VariantState(step=4)]
    return RaceState(words=["lr=1e-4,2e-4"], steps=40, by="loss", keep=keep, base="step-000004",
                     base_step=4, variants=variants)  # fmt: skip


def test_a_race_under_way_is_not_called_interrupted(
    run: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    store_race(run, unfinished())
    with race_lock(run):
        assert main(["race", str(run.path), "lr=1e-4,2e-4"]) == 1
    text = capsys.readouterr().err
    assert "another process is running a race" in text
    assert "interrupted" not in text


@pytest.mark.parametrize(
    ("timeline", "step", "known", "told"),
    [
        pytest.param(3, 13, [3], "step 9 of 40 in this round", id="its own"),
        pytest.param(2, 13, [3], "begins 40 steps in this round", id="that of the one before"),
        pytest.param(2, 13, [], "begins 40 steps in this round", id="before its rollback"),
        pytest.param(1, 99, [], "begins 40 steps in this round", id="that of the run before"),
        pytest.param(3, 4, [3], "begins 40 steps in this round", id="before its first step"),
    ],
)
def test_only_steps_on_the_timeline_of_a_variant_are_told_as_its_own(
    timeline: int, step: int, known: list[int], told: str
) -> None:
    race = unfinished()
    race.running = 1
    race.variants = [
        VariantState(rounds=1, step=44, timelines=[2]),
        VariantState(step=4, timelines=known),
    ]
    view = AppState(run_id="a", run=RunView(step=step, timeline=timeline))

    now, left = list(page_lines(race, view, True, 1.0, ()))[1:3]

    assert now.endswith(told)
    trains = told.startswith("step 9")
    assert left.startswith(f"left: at most {31 if trains else 40} steps")


def test_a_race_on_devices_says_what_it_waits_for_and_what_is_left() -> None:
    race = unfinished()
    race.devices = ["0", "1"]
    state = AppState(run_id="a", run=RunView(step=4))
    assert list(page_lines(race, state, True, 1.0, ()))[1:3] == [
        "now: an engine starts on each device",
        "left: at most 80 steps on the devices, then 40 steps of the best variant in the run",
    ]
    race.variants[0].at, race.variants[0].device = 14, "GPU 0"
    race.variants[1].rounds, race.variants[1].step = 1, 44
    assert list(page_lines(race, state, True, 1.0, ()))[1:3] == [
        "now: variant 1, lr 1e-4, on GPU 0: step 10 of 40",
        "left: at most 30 steps on the devices, then 40 steps of the best variant in the run",
    ]
    race.variants[0].at, race.running = None, 1
    told = list(page_lines(race, state, True, 1.0, ()))
    assert told[1:3] == ["now: the run trains the steps of lr 2e-4 again", ""]


def test_a_race_begun_during_the_question_is_kept(
    run: RunDirectory, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def answered() -> bool:
        store_race(run, unfinished())
        return True

    monkeypatch.setattr("fttui.tui.cli.experiments.race._confirmed", answered)
    assert main(["race", str(run.path), "lr=1e-4,2e-4", "--steps", "5"]) == 1
    assert "has changed the race" in capsys.readouterr().err
    assert read_race(run) == unfinished()


@pytest.mark.parametrize(
    ("words", "keep"), [([], "none"), (["--keep", "2"], "2"), (["--keep", "best"], "best")]
)
def test_what_a_race_keeps_is_known_when_it_goes_on(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, words: list[str], keep: str
) -> None:
    store_race(run, unfinished(keep="none"))
    taken: list[str] = []

    def take_up(_run: RunDirectory, state: RaceState, _options: object) -> int:
        taken.append(state.keep)
        return 0

    monkeypatch.setattr("fttui.tui.cli.experiments.race._take_up", take_up)
    assert main(["race", str(run.path), "--resume", *words]) == 0
    assert taken == [keep]


def test_a_planned_race_stores_what_it_keeps(run: RunDirectory) -> None:
    wanted = RaceRequest(words=("lr=1e-4,2e-4",), steps=5, keep="none")
    assert plan_race(run, wanted).state.keep == "none"


class Detached:
    """Stands for the process that was started to run a race."""

    def __init__(self, code: int | None, run: RunDirectory, said: str) -> None:
        self.returncode = code
        run.logs.mkdir(exist_ok=True)
        (run.logs / "race.log").write_text(said)

    def poll(self) -> int | None:
        return self.returncode


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        (["lr=x0.5", "--take"], ["lr=x0.5", "--steps", "100", "--keep", "best", "--yes", "--take"]),
        (
            ["--resume", "--keep", "2", "--accept-changed", "data"],
            ["--resume", "--accept-changed=data", "--keep", "2"],
        ),
        (["--cancel"], ["--cancel"]),
    ],
)
def test_a_detached_process_does_what_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], arguments: list[str]
) -> None:
    run = make_run(tmp_path)
    started: list[list[str]] = []

    def start(run: RunDirectory, step: str | None, given: list[str]) -> Detached:
        started.append(given)
        return Detached(0, run, "")

    monkeypatch.setattr(race_module, "start_race", start)
    line = ["race", run.id, *words, "--detach", "--yes", "--runs-dir", str(tmp_path)]
    assert main(line) == 0
    assert started == [arguments]


def test_a_detached_race_that_cannot_begin_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path)

    def start(run: RunDirectory, *_: Any) -> Detached:
        return Detached(2, run, "fttui: no room for this race\n")

    monkeypatch.setattr(race_module, "start_race", start)
    line = ["race", run.id, "lr=x0.5", "--detach", "--yes", "--runs-dir", str(tmp_path)]
    assert main(line) != 0
    assert "fttui: no room for this race" in capsys.readouterr().err


def test_a_detached_race_leaves_the_log_of_a_running_one_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path)
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("it was started"))
    log = run.logs / "race.log"
    log.parent.mkdir(exist_ok=True)
    log.write_text("variant 1 of 2\n")
    line = ["race", run.id, "lr=x0.5", "--detach", "--yes", "--runs-dir", str(tmp_path)]
    with race_lock(run):
        assert main(line) != 0
    assert "another process is running a race" in capsys.readouterr().err
    assert log.read_text() == "variant 1 of 2\n"


def test_a_detached_race_that_runs_says_how_to_follow_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, conductors = make_run(tmp_path), [None]
    monkeypatch.setattr(race_module, "start_race", lambda *_: Detached(None, run, ""))
    monkeypatch.setattr(
        race_module, "conducted_by", lambda _: conductors.pop() if conductors else 77
    )
    assert main(["race", run.id, "lr=x0.5", "--detach", "--yes", "--runs-dir", str(tmp_path)]) == 0
    assert f"fttui race {run.id} --follow" in capsys.readouterr().out


def test_the_rate_of_a_checkpoint_is_that_of_its_step_on_its_timeline(tmp_path: Path) -> None:
    engine = EngineDouble(make_run(tmp_path), total_steps=100)
    engine.start()
    for timeline, rate in ((1, 1e-4), (2, 3e-4), (3, 9e-4)):
        engine.timeline, engine.step = timeline, 0
        for step in range(1, 5):
            engine.step = step
            engine.emit(StepFinished(loss=2.0, step_s=0.5, lr=rate * step, lr_schedule=rate * step))
    checkpoint = Manifest(name="step-000002", step=2, timeline=2, time=0.0, world_size=1,
                          incarnation=1, files={})  # fmt: skip
    assert rate_at(engine.run, checkpoint).schedule == pytest.approx(6e-4)
    assert rate_at(engine.run, structs.replace(checkpoint, step=0)).schedule is None
