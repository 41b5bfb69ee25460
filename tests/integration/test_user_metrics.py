"""A metric of a function of the user is measured at evaluations and chooses the best checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from fttui.engine.protocol.events import CheckpointSaved, EvalFinished, LogEmitted, StepFinished
from tests.support.training import new_run, play

SOURCE = """
calls = []

def rising(prompts, completions, references):
    import random
    random.random()
    assert len(prompts) == len(completions) == len(references) == 3
    calls.append(1)
    if len(calls) == 2:
        raise ValueError("not this time")
    return [float(len(calls))] * 3
"""


@pytest.mark.long
def test_a_function_of_the_user_chooses_the_best_checkpoint(tmp_path: Path) -> None:
    file = tmp_path / "metrics.py"
    file.write_text(SOURCE)
    sets = {"train__steps": "6", "checkpoint__every": "0", "eval__every": "2"}
    measured = {
        "eval__metrics": f"['{file}:rising']",
        "eval__metric_records": "3",
        "eval__metric_tokens": "4",
        "checkpoint__best": "rising",
    }
    for name in ("plain", "measured"):
        (tmp_path / name).mkdir()
    plain = play(new_run(tmp_path / "plain", "sft", **sets))
    played = play(new_run(tmp_path / "measured", "sft", **sets, **measured))
    found = [event.metrics.get("rising") for event in played.events(EvalFinished)]
    assert found == [1.0, None, 3.0]
    assert [e.loss for e in played.events(StepFinished)] == [
        e.loss for e in plain.events(StepFinished)
    ], "training goes on bit for bit"
    assert [e.name for e in played.events(CheckpointSaved)][-1].startswith("step-000006")
    assert "step-000002" in [e.name for e in played.events(CheckpointSaved)]
    (warning,) = [e.text for e in played.events(LogEmitted) if e.level == "warning"]
    assert "metric rising is missing: ValueError: not this time" in warning
