from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from fttui.engine.config.checks import check_config, check_sources
from fttui.engine.config.load import load_config
from fttui.engine.config.schema import BenchmarksConfig, RunConfig
from tests.support.benchmarks import result

PLAIN: dict[str, Any] = {"model": {"id": "m"}, "data": {"train": "d.jsonl"}, "train": {"steps": 9}}
MEASURED = {"eval": {"benchmarks": {"tasks": ["words"]}}}


def problems(**sections: Any) -> dict[str, str]:
    config = msgspec.convert({**PLAIN, **sections}, RunConfig)
    return {problem.key: problem.text for problem in check_config(config)}


def test_a_benchmark_chooses_the_best_checkpoint_without_evaluations() -> None:
    stop = {"early_stop": {"metric": "bench.words.acc", "patience": 2}}
    best = {"checkpoint": {"best": "bench.words.exact_match.strict-match"}}
    assert problems(**MEASURED, **best, train={"steps": 9, **stop}) == {}


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({}, "got bench.words.acc, but no benchmark is measured; name its task in eval.benchmarks"),
        (
            {**MEASURED, "checkpoint": {"best": "bench.words"}},
            "expected bench.TASK.METRIC, such",
        ),
        (
            {**MEASURED, "checkpoint": {"best": "bench.words.acc", "every": 0}},
            "none are written during training; set checkpoint.every",
        ),
    ],
)
def test_a_metric_that_nothing_measures_is_refused(sections: dict[str, Any], said: str) -> None:
    best = {"checkpoint": {"best": "bench.words.acc"}}
    assert said in problems(**{**best, **sections})["checkpoint.best"]


def test_a_reward_model_has_no_benchmarks() -> None:
    assert "generates none" in problems(**MEASURED, task="reward")["eval.benchmarks.tasks"]


@pytest.mark.parametrize("name", ["", "a,b", "two words", "--limit"])
def test_an_entry_that_names_no_single_task_is_refused(name: str) -> None:
    found = problems(eval={"benchmarks": {"tasks": ["words", name]}})
    assert f"got {name!r}" in found["eval.benchmarks.tasks"]


def test_a_task_that_is_named_twice_is_refused() -> None:
    found = problems(eval={"benchmarks": {"tasks": ["words", "words"]}})
    assert "words is named twice" in found["eval.benchmarks.tasks"]


def test_the_folder_of_tasks_is_found_beside_the_configuration(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(
        "model: {id: m}\ndata: {train: d.jsonl}\ntrain: {steps: 9}\n"
        "eval: {benchmarks: {tasks: [words], include: tasks, device: 'cuda:1'}}\n"
    )
    missing = check_sources(load_config(file, []).config)
    assert (
        "no folder tasks; give a folder"
        in {p.key: p.text for p in missing}["eval.benchmarks.include"]
    )
    (tmp_path / "tasks").mkdir()
    config = load_config(file, []).config
    assert config.eval.benchmarks.include == str(tmp_path / "tasks")


def test_a_result_of_another_limit_or_prompt_does_not_decide() -> None:
    settings = BenchmarksConfig(tasks=["words"])
    assert settings.interval == 1
    assert BenchmarksConfig().interval == 0
    assert settings.decides_by(result())
    assert not settings.decides_by(result(total=90))
    assert not settings.decides_by(result(chat_template=True))
    assert BenchmarksConfig(tasks=["words"], limit=12).decides_by(result(total=90))
