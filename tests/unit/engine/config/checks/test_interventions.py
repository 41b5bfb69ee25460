"""Planned commands are checked before a run, because nobody is there when they are due."""

from __future__ import annotations

from pathlib import Path

import pytest

from fttui.engine.config.load import load_config
from fttui.engine.config.schema import PlannedCommand, RunConfig
from fttui.engine.errors import ConfigError

CONFIG = "model: {id: m}\ndata: {train: a.jsonl}\ntrain: {steps: 12}\ninterventions:\n"


def loaded(folder: Path, *planned: str) -> RunConfig:
    (folder / "c.yaml").write_text(CONFIG + "".join(f"  - {one}\n" for one in planned))
    return load_config(folder / "c.yaml").config


@pytest.mark.parametrize(
    "command",
    [
        "lr scale 0.3333333333333333", "lr set 1e-4", "lr reset", "clip 0.5", "clip p90.0",
        "clip off", "skip 3", "mix code=2", "quarantine a b", "quarantine lift a",
        "policy nonfinite halt",
    ],
)  # fmt: skip
def test_what_changes_the_training_can_be_planned(tmp_path: Path, command: str) -> None:
    found = loaded(tmp_path, f"{{step: 11, command: {command}}}")
    assert found.interventions == [PlannedCommand(step=11, command=command)]


@pytest.mark.parametrize(
    ("planned", "expected"),
    [
        (
            "{step: 3, command: rollback 2}",
            "'rollback 2', which cannot be planned",
        ),
        ("{step: 3, command: pause}", "cannot be planned"),
        ("{step: 3, command: stop}", "cannot be planned"),
        ("{step: 3, command: policy autopilot act}", "cannot be planned"),
        ("{step: 3, command: schedule linear from=12}", r"interventions\[0\]: got from=12, but"),
        ("{step: 3, command: lr scael 0.5}", r"interventions\[0\]: got 'lr scael 0.5': unknown"),
        ("{step: 3, command: lr scale -1}", "the factor must be > 0, got -1"),
        ("{step: 12, command: clip off}", "got step 12, but the run ends after step 12"),
        ("{step: -1, command: clip off}", "expected a whole number"),
        ("{step: 3}", "missing key 'command'"),
        ("clip off", "expected keys below it"),
    ],
)
def test_what_would_have_no_effect_or_cannot_be_done_is_refused(
    tmp_path: Path, planned: str, expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected):
        loaded(tmp_path, planned)
