"""Where a forgetting meter makes sense."""

from __future__ import annotations

from pathlib import Path

import pytest

from fttui.engine.config.checks import check_sources
from fttui.engine.config.load import load_config
from fttui.engine.errors import ConfigError

ON = "forgetting: {texts: general}\n"


def load(tmp_path: Path, text: str, task: str = "sft") -> object:
    data = tmp_path / "rows.jsonl"
    data.write_text('{"text": "one"}\n')
    path = tmp_path / "run.yaml"
    path.write_text(f"model: {{id: m}}\ntask: {task}\ntrain: {{steps: 1}}\n{text}")
    return load_config(path, [f"data.train={data}"] if "data:" not in text else []).config


@pytest.mark.parametrize(
    ("task", "text", "message"),
    [
        ("reward", ON, "task reward trains a model that scores texts"),
        ("contrastive", f"{ON}contrastive: {{kind: infonce, ce_weight: 0}}\n", "trains embeddings"),
        ("sft", f"{ON}data: {{train: a.jsonl, eval_fraction: 0}}\n", "no evaluation data"),
        ("sft", "checkpoint: {best: forgetting.balance}\neval: {every: 5}\n", "does not measure"),
    ],
)
def test_a_meter_that_would_say_nothing_is_refused(
    tmp_path: Path, task: str, text: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, text, task)


def test_its_metrics_choose_the_best_checkpoint_and_end_a_run(tmp_path: Path) -> None:
    text = f"{ON}checkpoint: {{best: forgetting.balance}}\neval: {{every: 5}}\n"
    load(tmp_path, text)
    load(tmp_path, f"{ON}contrastive: {{kind: infonce, ce_weight: 0.5}}\n", "contrastive")


def test_a_missing_file_is_named_and_a_relative_one_is_found(tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_text("a text")
    found = load(tmp_path, "forgetting: {texts: own.txt}\n")
    assert found.forgetting.texts == str(tmp_path / "own.txt")  # type: ignore[attr-defined]
    missing = load(tmp_path, "forgetting: {texts: gone.txt}\n")
    assert [p.key for p in check_sources(missing)] == ["forgetting.texts"]  # type: ignore[arg-type]
