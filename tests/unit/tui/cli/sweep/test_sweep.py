"""The command line of a sweep: what it refuses, what it prints before and after."""

from __future__ import annotations

import io
import random
from dataclasses import replace
from pathlib import Path

import pytest

from fttui.engine.errors import ConfigError
from fttui.engine.protocol.usage.amounts import Price, Usage
from fttui.engine.run.run_dir import RunDirectory
from fttui.tui.cli.main import build_parser, main
from fttui.tui.cli.shell.completion import completion_script
from fttui.tui.cli.shell.man_page import man_page
from fttui.tui.cli.sweep.prepare import time_limit_s, whole_only
from fttui.tui.cli.sweep.study import Study
from fttui.tui.cli.sweep.sweep import best_text
from fttui.tui.cli.sweep.sweep_folder import SweepFolder, new_sweep_folder, sweeps
from fttui.tui.cli.sweep.sweep_text import (
    broken_line,
    cost_line,
    rest_line,
    result_lines,
    table_lines,
    trial_line,
)
from fttui.tui.cli.sweep.trial_run import TrialRuns
from fttui.tui.view_model.race.rounds import MeasuredTimes
from fttui.tui.view_model.sweep.search_space import Axis, parse_space
from fttui.tui.view_model.sweep.sweep_plan import SweepPlan, TrialResult

CONFIG = """
name: mine
model: {id: m}
data: {train: a.jsonl, eval_fraction: 0.1}
train: {steps: 100, lr: 1.0e-4}
"""
WORDS = ["train.lr=1e-4..1e-2:log", "adapter.r=4,8"]
PLAN = SweepPlan(
    name="mine", config="/c.yaml", words=WORDS, trials=4, steps=80, by="eval.loss", every=16
)


def space(*words: str) -> tuple[Axis, ...]:
    return parse_space(words or WORDS, whole_only)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FTTUI_RUNS", str(tmp_path / "runs"))
    file = tmp_path / "my.yaml"
    file.write_text(CONFIG)
    return file


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main(["sweep", *words])
    both = capsys.readouterr()
    return code, both.out + both.err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["train.lrr=1e-4,2e-4"], "train.lrr=1e-4: unknown key 'lrr' in train; did you mean 'lr'?"),
        (["adapter.rank=4..8"], "unknown key 'rank' in adapter; did you mean 'r'?"),
        (["train.lr=1e-4,fast"], "train.lr=fast: train.lr: got 'fast', expected a number"),
        (["train.steps=10,20"], "train.steps cannot vary"),
        ([], "no settings to vary"),
        (["train.lr=1e-4..1e-3", "--sampler", "grid"], "needs values or ranges with a step"),
        (["train.lr=1e-4,1e-3", "--by", "accuracy"], "--by must be loss or eval.NAME"),
        (["train.lr=1e-4,1e-3", "--by", "eval.accuracy"], "have eval.loss"),
        (["train.lr=1e-4,1e-3", "--trials", "0"], "must be ≥ 1"),
        (["train.lr=1e-4,1e-3", "--steps", "0"], "must be ≥ 1, got 0"),
        (["train.lr=1e-4,1e-3", "--seed", "-1"], "--seed must be from 0"),
        (["train.lr=1e-4,1e-3", "--resume"], "a YAML file starts a new one"),
        (["train.lr=1e-4,1e-3", "--set", "train.nodes=2"], "a sweep trains on one machine"),
        (["train.lr=1e-4,1e-3", "--time-limit", "soon"], "expected a time such as 90m"),
        (["train.lr=1e-4,1e-3", "--set", "data.eval_fraction=0", "--by", "eval.loss"],
         "has no evaluation data"),
        (["train.lr=1e-4,1e-3", "--set", "train.steps=null", "--set", "train.epochs=1"],
         "give the steps per trial: --steps N"),
    ],
)  # fmt: skip
def test_what_cannot_be_swept_is_refused(
    config: Path, capsys: pytest.CaptureFixture[str], words: list[str], expected: str
) -> None:
    code, text = said(capsys, str(config), *words)
    assert code == 2
    assert expected in text


def test_an_error_of_the_file_names_its_line(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(CONFIG.replace("lr: 1.0e-4", "lrr: 1.0e-4"))
    code, text = said(capsys, str(config), *WORDS)
    assert code == 2
    assert "my.yaml:5: unknown key 'lrr' in train" in text


def test_nothing_begins_without_a_yes_but_plan_and_cost_are_told(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = said(capsys, str(config), *WORDS, "--trials", "7")
    assert code == 2
    assert "7 trials of 100 steps, compared by eval.loss" in text
    assert "eval.every is set to 20" in text
    assert "cost: 700 steps at most" in text
    assert "add --yes" in text
    assert not (config.parent / "runs").exists()


def test_the_cost_is_told_by_what_was_measured() -> None:
    times = MeasuredTimes(0.5, 2.0, 1.0, 2**20, 9.0)
    line = cost_line(PLAN, 4, times, 3, "mine-1")
    assert "cost: 320 steps at most" in line
    assert "about 4 m 0 s, estimated from mine-1" in line  # 4 × (9 + 40 + 5 × 2 + 1)
    assert "up to 12 checkpoints, up to 12.0 MiB" in line
    used = replace(times, use_per_s=Usage(seconds=1.0, device_s=1.0, energy_j=100.0))
    line = cost_line(PLAN, 4, used, 3, "mine-1", Price(hour=3.0, currency="EUR"))
    assert "mine-1, 6.67 Wh, 0.20 EUR; up to" in line  # 240 s at 100 W and 3 EUR per hour


def trials() -> list[TrialResult]:
    rng = random.Random(0)
    losses = {step: 2.0 + rng.gauss(0, 0.3) for step in range(1, 81)}
    worse = {step: loss + 0.1 + rng.gauss(0, 0.02) for step, loss in losses.items()}
    return [
        TrialResult(1, {"train.lr": "0.001", "adapter.r": "4"}, "complete", "mine-t1", 2.2, 80,
                    losses=worse),
        TrialResult(2, {"train.lr": "0.00021", "adapter.r": "8"}, "complete", "mine-t2", 2.1, 80,
                    losses=losses),
        TrialResult(3, {"train.lr": "0.01", "adapter.r": "8"}, "failed", "mine-t3",
                    why="halted after step 9: loss NaN", failure="not finite"),
        TrialResult(4, {"train.lr": "0.009", "adapter.r": "8"}, "pruned", "mine-t4", 3.0, 32),
        TrialResult(5, {"train.lr": "0.001", "adapter.r": "4"}, "complete", same_as=1, score=2.2),
    ]  # fmt: skip


def test_the_table_has_the_best_first_and_says_what_became_of_each() -> None:
    head, best, second, early, failed = table_lines(PLAN, space(), trials())
    assert head.split()[:4] == ["trial", "settings", "steps", "eval.loss"]
    assert best.split()[:7] == ["2", "lr", "0.00021,", "r", "8", "80", "2.100"]
    assert "+0.10" in second
    assert early.endswith("ended early")
    assert failed.endswith("failed: halted after step 9: loss NaN")


def test_the_result_counts_failures_and_says_how_sure_it_is() -> None:
    text = "\n".join(result_lines(PLAN, space(), trials(), "/best.yaml"))
    assert (
        "4 trials: 2 with all steps, 1 ended early, 1 failed, 1 proposed again and not trained "
        "again" in text
    )
    assert "failed: 1 trial halted, because loss or gradients were not finite" in text
    assert "best: trial 2, lr 0.00021, r 8, eval.loss 2.1" in text
    assert "against trial 1: training loss on the same 40 batches lower by 0.1" in text
    assert "chance does not explain" in text
    assert "fttui run /best.yaml" in text


def test_trials_on_other_batches_are_not_compared_step_by_step() -> None:
    axes = space("train.batch=2,4")
    found = [
        TrialResult(n, {"train.batch": str(2 * n)}, "complete", f"t{n}", 2.0 + n, 80,
                    losses=trials()[0].losses)
        for n in (1, 2)
    ]  # fmt: skip
    text = "\n".join([*table_lines(PLAN, axes, found), *result_lines(PLAN, axes, found, "b")])
    assert "no interval: train.batch changes the batches or the loss" in text
    assert "±" not in text


def test_the_line_of_a_failed_trial_says_why() -> None:
    line = trial_line(PLAN, space(), trials()[2], best=False)
    assert line.endswith("lr 0.01, r 8  failed: halted after step 9: loss NaN")


def test_the_best_settings_are_written_into_the_users_own_configuration(config: Path) -> None:
    from fttui.engine.config.load import load_config

    folder = new_sweep_folder(config.parent, "mine")
    own = load_config(config).resolved
    folder.store(PLAN, "eval: {every: 3}\n", own)
    text = best_text(folder, PLAN, space(), trials()[1])
    folder.store_best(text)
    found = load_config(folder.best).config
    assert (found.train.lr, found.train.steps, found.name) == (0.00021, 100, "mine")
    assert found.adapter.r == 8
    assert "trial 2 of run mine-t2" in text


@pytest.mark.parametrize(
    ("left", "training", "told"),
    [
        (5, 0, "  then 5 trials more: at most 5 m 0 s"),
        (4, 1, "  then 4 trials more, besides 1 training now: at most 3 m 0 s"),
        (0, 1, "  1 trial still training: at most 1 m 0 s"),
    ],
)
def test_trials_that_train_now_are_not_counted_among_those_to_come(
    left: int, training: int, told: str
) -> None:
    assert rest_line(left, training, 2 if training else 1, 60.0) == told


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (OSError(28, "No space left on device"), "[Errno 28] No space left on device"),
        (KeyError("lr"), "KeyError('lr')"),
        (OSError(), "OSError()"),
    ],
)
def test_an_error_that_ends_a_sweep_names_its_trial(error: Exception, why: str) -> None:
    trial = 3, {"train.lr": "0.01", "adapter.r": "8"}
    line = broken_line(space(), trial, error, [4])
    assert line == (
        f"trial 3: lr 0.01, r 8  ended by an error: {why}; no further trial begins; trial 4 still "
        "training, Ctrl-C stops with a checkpoint"
    )
    assert broken_line(space(), None, error, []).startswith(f"the sweep  ended by an error: {why}")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("no space left")])
def test_a_sweep_that_ends_before_its_first_trial_leaves_no_folder(
    config: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
) -> None:
    def start(runs: TrialRuns, overrides: list[str]) -> RunDirectory:
        raise error

    monkeypatch.setattr("fttui.tui.cli.sweep.sweep._require_data", lambda resolved: None)
    monkeypatch.setattr(TrialRuns, "start", start)
    code, text = said(capsys, str(config), *WORDS, "--yes")
    assert code != 0
    assert "no trial has begun, so" in text
    assert "--resume" not in text
    assert list((config.parent / "runs").iterdir()) == []


def test_a_sweep_with_a_trial_is_kept_for_a_resume(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []

    def start(runs: TrialRuns, overrides: list[str]) -> RunDirectory:
        if started:
            raise OSError("no space left")
        started.append(overrides)
        raise ConfigError("it does not fit")

    monkeypatch.setattr("fttui.tui.cli.sweep.sweep._require_data", lambda resolved: None)
    monkeypatch.setattr(TrialRuns, "start", start)
    code, text = said(capsys, str(config), *WORDS, "--yes")
    (folder,) = sweeps(config.parent / "runs")
    assert code != 0
    assert "trial 2: lr" in text
    assert "ended by an error: no space left; no further trial begins" in text
    assert f"resume with: fttui sweep {folder.id} --resume" in text
    assert "failed: it does not fit" in text


def test_results_are_shown_again_and_options_that_would_change_them_are_refused(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = config.parent / "runs"
    folder = new_sweep_folder(runs, "mine")
    folder.store(PLAN, CONFIG, CONFIG)
    study = Study(folder, PLAN, space())
    trial = study.next_trial()
    study.conclude(trial, TrialResult(1, trial.values, "complete", "mine-t1", 2.5, 80))
    code, text = said(capsys, "mine")
    assert code == 0
    assert "best: trial 1" in text
    assert f"resume with: fttui sweep {folder.id} --resume" in text
    code, text = said(capsys, "--resume", "--steps", "9")
    assert code == 2
    assert "--steps cannot change in an existing sweep" in text
    code, text = said(capsys, "other")
    assert code == 2
    assert f"there are: {folder.id}" in text


@pytest.mark.parametrize(
    ("text", "seconds"), [("90m", 5400), ("2h30m", 9000), ("3600", 3600), ("1d 1.5h", 91800)]
)
def test_times_are_read(text: str, seconds: float) -> None:
    assert time_limit_s(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "0", "-3m", "3 weeks", "1" * 40 + "x"])
def test_other_times_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected a time such as 90m"):
        time_limit_s(text)


@pytest.fixture
def begun(config: Path) -> SweepFolder:
    folder = new_sweep_folder(config.parent / "runs", "mine")
    folder.store(PLAN, "name: mine", "name: mine")
    return folder


@pytest.mark.parametrize(
    "words", [["--trials", "9"], ["--steps", "3"], ["--time-limit", "1h"], ["--set", "a=b"]]
)
def test_options_that_would_not_be_used_are_refused(
    begun: SweepFolder, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    code, text = said(capsys, begun.id, *words)
    assert code == 2
    assert f"{words[0]} has no effect without training; add --resume" in text


def test_the_old_name_of_resume_works_with_a_warning_and_is_not_offered(
    begun: SweepFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = said(capsys, begun.id, "--go-on", "--trials", "-3")
    assert code == 2
    assert "--go-on is deprecated and will be removed in fttui 0.3.0; use --resume" in text
    assert "--trials must be ≥ 1" in text
    with pytest.raises(SystemExit):
        main(["sweep", "--help"])
    assert "--go-on" not in capsys.readouterr().out
    assert "--go-on" not in completion_script(build_parser(), "bash")
    assert r"go\-on" not in man_page()


def test_the_plan_stays_where_no_trial_may_be_trained(
    begun: SweepFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said(capsys, begun.id, "--resume", "--trials", "-3")[0] == 2
    with begun.locked():
        assert "another process" in said(capsys, begun.id, "--resume", "--trials", "9")[1]
    assert begun.plan() == PLAN


def test_a_study_goes_on_behind_a_line_that_was_cut(begun: SweepFolder) -> None:
    first = Study(begun, PLAN, space()).next_trial().values
    whole = begun.study.read_bytes()
    with begun.study.open("ab") as file:
        file.write(b'{"op_code":4,"tr')
    assert begun.drop_cut_line() == 16
    assert begun.study.read_bytes() == whole
    assert [one.values for one in Study(begun, PLAN, space()).results()] == [first]
    assert begun.drop_cut_line() == 0


def test_a_damaged_study_is_named(begun: SweepFolder, capsys: pytest.CaptureFixture[str]) -> None:
    Study(begun, PLAN, space())
    begun.study.write_bytes(b"\xff{\n" + begun.study.read_bytes())
    code, text = said(capsys, begun.id)
    assert code == 1
    assert "study.log is damaged" in text


def test_an_input_that_ends_at_the_question_starts_nothing(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", terminal)
    code, text = said(capsys, str(config), *WORDS)
    assert code == 130
    assert "nothing was started" in text
    assert not (config.parent / "runs").exists()
