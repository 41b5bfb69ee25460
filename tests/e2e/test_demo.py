"""The demo itself: the real SmolLM2 from its package, on pairs from the standard library."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from tests.support.cli import events, fttui, only_run
from tests.support.smollm2 import model_cache, needs_smollm2

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.model,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    needs_smollm2,
]
DEMO = Path(__file__).parents[2] / "configs" / "demo.yaml"


def test_the_demo_trains_and_saves(
    tmp_path: Path, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FTTUI_CACHE", str(model_cache(pytestconfig)))
    result = fttui(
        "run", str(DEMO), "--headless", "--max-steps", "2", "--set", "data.eval_limit=4",
        "--set", "checkpoint.every=2", "--set", "data.train_limit=64",
        runs=tmp_path, timeout_s=850,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(r"records \(\d+ %\) truncated to data\.max_length", result.stdout)
    assert "tokenized data: from cache" in result.stdout.partition("run demo:")[2]
    found = events(only_run(tmp_path), tmp_path)
    steps = [event for event in found if event["type"] == "StepFinished"]
    assert [event["step"] for event in steps] == [1, 2]
    assert all(math.isfinite(event["loss"]) and event["loss"] > 0 for event in steps)
    assert {"ce", "contrastive"} <= steps[0]["parts"].keys()
    (evaluation,) = [event for event in found if event["type"] == "EvalFinished"]
    assert 0 <= evaluation["metrics"]["recall_at_1"] <= 1
    saved = [event["name"] for event in found if event["type"] == "CheckpointSaved"]
    assert saved == ["step-000000", "step-000002"]
