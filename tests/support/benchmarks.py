"""A benchmark that is defined on disk alone, and results as it would give them."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from fttui.engine.protocol.benchmarks.result import BenchmarkResult, BenchmarkScore

needs_harness = pytest.mark.skipif(
    find_spec("lm_eval") is None, reason="needs pip install 'fttui[bench]'"
)
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
_TASK = """
task: words
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: label
metric_list:
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
metadata: {{version: 2.5}}
"""


def local_task(folder: Path, examples: int = 12) -> Path:
    """Write the task `words`, questions with three answers, and return the folder to include."""
    tasks = folder / "tasks"
    tasks.mkdir()
    rows = [
        {"question": f"say {n}", "choices": [" alpha", " beta", " gamma"], "label": n % 3}
        for n in range(examples)
    ]
    data = tasks / "words.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tasks / "words.yaml").write_text(_TASK.format(data=data))
    return tasks


def result(value: float = 0.5, step: int = 4, timeline: int = 1, **fields: Any) -> BenchmarkResult:
    """A result of the task `words` at a checkpoint."""
    known: dict[str, Any] = {
        "task": "words",
        "checkpoint": f"step-{step:06d}",
        "scores": {"acc": BenchmarkScore(value=value, stderr=0.1)},
        "examples": 12,
        "total": 12,
        "harness": "lm_eval 0.4.13",
        "version": "2.5",
    }
    return BenchmarkResult(step=step, timeline=timeline, **{**known, **fields})
