"""Benchmarks on checkpoints: the numbers of plain libraries, recorded by a live run or after it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from peft import AutoPeftModelForCausalLM
from transformers import AutoTokenizer

from fttui.engine.bench.__main__ import main
from fttui.engine.bench.recording import ISSUER
from fttui.engine.export.__main__ import main as export
from fttui.engine.protocol.benchmarks.result import BenchmarkFinished
from fttui.engine.protocol.events import CommandApplied
from fttui.engine.run.checkpoint_store import CheckpointStore
from fttui.engine.run.records.record_feed import read_whole
from fttui.engine.run.run_dir import RunDirectory
from tests.support.benchmarks import OFFLINE, local_task, needs_harness
from tests.support.cli import fttui, only_run, start
from tests.support.training import new_run, play, write_config
from tests.support.waiting import until

pytestmark = needs_harness


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in OFFLINE.items():
        monkeypatch.setenv(name, value)


def results(run: RunDirectory) -> list[BenchmarkFinished]:
    return [r.event for r in read_whole(run)[0] if isinstance(r.event, BenchmarkFinished)]


def accuracy(folder: Path, tasks: Path, *, adapter: bool) -> float:
    """What the task measures, as a user of peft and transformers computes it."""
    model = AutoPeftModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = [json.loads(line) for line in (tasks / "words.jsonl").read_text().splitlines()]
    right = 0
    for row in rows:
        asked = tokenizer(row["question"], add_special_tokens=False)["input_ids"]
        scores = []
        for choice in row["choices"]:
            said = tokenizer(choice, add_special_tokens=False)["input_ids"]
            ids = torch.tensor([asked + said])
            with torch.no_grad():
                logits = (model if adapter else model.unload())(ids).logits
            chances = logits[0, len(asked) - 1 : -1].log_softmax(-1)
            scores.append(float(chances[torch.arange(len(said)), said].sum()))
        right += scores.index(max(scores)) == row["label"]
    return right / len(rows)


def test_a_benchmark_has_the_numbers_of_plain_libraries_and_joins_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = new_run(tmp_path, "sft", train__steps=4, train__lr=0.05, checkpoint__every=2)
    play(run)
    tasks = local_task(tmp_path, examples=24)
    words = [str(run.path), "2", "--tasks", "words", "--include-path", str(tasks)]
    assert main([*words, "--base"]) == 0
    (first,) = results(run)
    score = first.result.scores["acc"]
    out = tmp_path / "plain"
    assert export([str(run.path), "2", "--kind", "adapter", "--out", str(out)]) == 0
    assert score.value == pytest.approx(accuracy(out, tasks, adapter=True))
    assert score.base == pytest.approx(accuracy(out, tasks, adapter=False))
    assert score.stderr is not None
    assert (first.after_end, first.result.step, first.result.timeline) == (True, 2, 1)
    assert first.result.conditions.startswith("24 examples, 0-shot, task version 2.5, lm_eval ")
    assert CheckpointStore(run).find("2").metrics["bench.words.acc"] == score.value

    words[1] = "last"
    assert main([*words, "--limit", "5"]) == 0
    limited = results(run)[-1].result
    assert (limited.step, limited.examples, limited.total) == (4, 5, 24)
    assert limited.scores["acc"].base is None, "the base was measured on other examples"
    said = capsys.readouterr().out
    assert f"bench.words.acc  {score.text}" in said
    assert "caution: earlier results of words were measured differently (24 examples" in said


@pytest.mark.long
def test_a_task_that_is_not_there_is_refused_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = new_run(tmp_path, "sft", train__steps=2)
    play(run)
    tasks = local_task(tmp_path)
    text = (tasks / "words.yaml").read_text()
    (tasks / "broken.yaml").write_text(text.replace("words", "broken"))
    words = [str(run.path), "last", "--include-path", str(tasks), "--tasks"]
    assert main([*words, "nothing"]) == 2
    assert main([*words, "words,hellaswag"]) == 9
    assert main([*words, "broken"]) == 9
    assert main([*words[:2], "--include-path", str(tmp_path / "no"), "--tasks", "words"]) == 2
    captured = capsys.readouterr()
    assert "no task 'nothing'; nearest of" in captured.err
    assert "task hellaswag cannot be loaded: ConnectionError" in captured.err
    assert "HF_HUB_OFFLINE" in captured.err
    assert "task broken cannot be loaded: FileNotFoundError" in captured.err
    assert "no is not a folder; name one with task files" in captured.err
    assert "measuring" not in captured.out
    assert results(run) == []


@pytest.mark.long
@pytest.mark.parametrize("paused", [False, True])
def test_a_live_run_records_the_result_at_its_next_boundary(tmp_path: Path, paused: bool) -> None:
    config, sets = write_config(tmp_path, "sft", train__steps=100_000, checkpoint__every=2)
    tasks, runs = local_task(tmp_path), tmp_path / "runs"
    settings = [word for one in sets for word in ("--set", one)]
    trains = start("run", "--headless", str(config), *settings, runs=runs)
    try:
        until(lambda: list(runs.glob("*/checkpoints/*/MANIFEST.json")), 100)
        run = RunDirectory(runs / only_run(runs))
        if paused:
            fttui("ctl", run.id, "pause", runs=runs)
        name = CheckpointStore(run).find("last").name
        words = ["bench", f"{run.id}@{name}", "--tasks", "words", "--include-path", str(tasks)]
        done = fttui(*words, runs=runs)
        assert done.returncode == 0, done.stdout + done.stderr
        (found,) = results(run)
        assert not found.after_end
        assert found.result.checkpoint == name
        applied = [r for r in read_whole(run)[0] if isinstance(r.event, CommandApplied)]
        assert applied[-1].event.issuer == ISSUER  # type: ignore[union-attr]
        assert applied[-1].step >= found.result.step
        if name in [one.name for one in CheckpointStore(run).all()]:
            assert "bench.words.acc" in CheckpointStore(run).find(name).metrics
        fttui("ctl", run.id, "stop", runs=runs)
        assert trains.wait(60) == 0
    finally:
        trains.kill()


@pytest.mark.long
@pytest.mark.parametrize("task", ["contrastive", "dpo"])
@pytest.mark.parametrize("kind", ["lora", "none"])
def test_runs_of_other_kinds_are_measured(tmp_path: Path, task: str, kind: str) -> None:
    more = {"train__ema": 0.5} if kind == "lora" else {}
    run = new_run(tmp_path, task, train__steps=2, adapter__kind=kind, **more)
    play(run)
    tasks = local_task(tmp_path)
    assert (
        main([str(run.path), "last", "--tasks", "words", "--include-path", str(tasks), "--base"])
        == 0
    )
    (found,) = results(run)
    assert found.result.averaged is (kind == "lora")
    assert found.result.scores["acc"].base is not None


@pytest.mark.long
def test_a_reward_model_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = new_run(tmp_path, "reward", train__steps=2)
    play(run)
    assert main([str(run.path), "last", "--tasks", "words"]) == 2
    assert "trains a reward model" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.timeout(600)  # its processes have a low priority
def test_benchmarks_of_a_configuration_keep_the_best_checkpoint(tmp_path: Path) -> None:
    tasks, runs = local_task(tmp_path), tmp_path / "runs"
    benchmarks = f"{{tasks: [words], include: {tasks}, base: true}}"
    config, sets = write_config(
        tmp_path,
        "sft",
        train__steps=6,
        checkpoint__every=2,
        checkpoint__keep=1,
        checkpoint__best="bench.words.acc",
        eval__benchmarks=benchmarks,
    )
    settings = [word for one in sets for word in ("--set", one)]
    done = fttui("run", "--headless", str(config), *settings, runs=runs)
    assert done.returncode == 0, done.stdout + done.stderr
    run = RunDirectory(runs / only_run(runs))
    until(lambda: len(results(run)) == 4, 500)
    found = [event.result for event in results(run)]
    assert [one.step for one in found] == [0, 2, 4, 6], "each is kept until it is measured"
    assert [one.error for one in found] == [""] * 4
    bases = {one.scores["acc"].base for one in found}
    assert len(bases) == 1
    assert None not in bases
    store = CheckpointStore(run)  # each manifest takes its result once that is in the journal
    until(lambda: all("bench.words.acc" in one.metrics for one in store.all()))
    values = {one.name: one.metrics["bench.words.acc"] for one in store.all()}
    best = max(one.scores["acc"].value for one in found)
    assert max(values.values()) == best
    assert "measuring step-000006" in (run.logs / "benchmarks.log").read_text()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_task_of_a_configuration_that_fails_is_said_in_the_run(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    benchmarks = f"{{tasks: [nothing], include: {local_task(tmp_path)}}}"
    config, sets = write_config(tmp_path, "sft", train__steps=4, eval__benchmarks=benchmarks)
    settings = [word for one in sets for word in ("--set", one)]
    done = fttui("run", "--headless", str(config), *settings, runs=runs)
    assert done.returncode == 0, done.stdout + done.stderr
    run = RunDirectory(runs / only_run(runs))
    until(lambda: results(run), 300)
    (failed,) = results(run)
    assert failed.result.error.startswith("no task 'nothing'; nearest of")
    assert (failed.result.checkpoint, failed.result.scores) == ("step-000000", {})
    log = run.logs / "benchmarks.log"
    until(lambda: "no further checkpoint is measured" in log.read_text(), 100)
