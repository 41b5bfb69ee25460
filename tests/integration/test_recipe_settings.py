"""Weight decay, dropout and schedule that commands change equal those of a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fttui.engine.protocol.events import CommandApplied, CommandFailed, StepFinished
from fttui.engine.run.checkpoint_store import CheckpointStore
from fttui.engine.run.run_dir import RunDirectory
from tests.support.training import Script, new_run, play, read_records

pytestmark = pytest.mark.timeout(300)
TYPED = ["weight_decay 3", "dropout 0.3"]
CONFIGURED: dict[str, Any] = {"train__weight_decay": 3, "adapter__dropout": 0.3}
PLAIN: dict[str, Any] = {"train__weight_decay": 0, "adapter__dropout": 0}


def new(folder: Path, **sets: Any) -> RunDirectory:
    folder.mkdir(parents=True)
    return new_run(folder, "sft", **sets)


def weights(run: RunDirectory) -> dict[str, str]:
    """Hashes of the weights, the optimizer and the generators of the last checkpoint."""
    files = CheckpointStore(run).all()[-1].files
    aside = ("state.msgpack", "adapter_config.json", "optimizer.safetensors")
    return {name: file.sha256 for name, file in files.items() if name not in aside}


def test_commands_train_as_a_configuration_also_after_rollback_and_resume(tmp_path: Path) -> None:
    configured = new(tmp_path / "configured", **CONFIGURED)
    expected = play(configured).losses()
    typed = new(tmp_path / "typed", checkpoint__at_start="true", **PLAIN)
    script = Script(commands={2: TYPED, 3: ["rollback 0"], 5: ["checkpoint", "stop"]})
    first = play(typed, script)
    found = first.losses() | play(typed, resume="last").losses()
    assert found == expected
    assert weights(typed) == weights(configured)
    applied = [one for one in first.events(CommandApplied) if one.settings is not None]
    assert [(one.old, one.new) for one in applied[:2]] == [
        ("as configured", "3"),
        ("as configured", "0.3"),
    ]


@pytest.mark.long
@pytest.mark.parametrize("fast", ["off", "static"])
def test_a_change_in_mid_run_can_be_planned_and_repeats(tmp_path: Path, fast: str) -> None:
    typed = new(tmp_path / "typed", train__fast=fast, **PLAIN)
    found = play(typed, Script(commands={3: [*TYPED, "schedule cosine"], 6: ["dropout reset"]}))
    changes = [
        (one.step, one.event.command)
        for one in read_records(typed)
        if isinstance(one.event, CommandApplied)
    ]
    plans = ", ".join(f"{{step: {step}, command: {command}}}" for step, command in changes)
    planned = new(tmp_path / "planned", train__fast=fast, interventions=f"[{plans}]", **PLAIN)
    assert play(planned).losses() == found.losses()
    plain = play(new(tmp_path / "plain", train__fast=fast, **PLAIN)).losses()
    first = changes[0][0]
    assert plain[first] == found.losses()[first]
    assert plain[first + 1] != found.losses()[first + 1]
    assert weights(typed) == weights(planned)


@pytest.mark.long
def test_a_static_forward_takes_a_changed_dropout(tmp_path: Path) -> None:
    configured = new(tmp_path / "configured", train__fast="static", **CONFIGURED)
    typed = new(tmp_path / "typed", train__fast="static", **PLAIN)
    assert play(typed, Script(early=TYPED)).losses() == play(configured).losses()
    assert weights(typed) == weights(configured)


@pytest.mark.long
def test_the_rest_of_a_schedule_begins_at_the_present_rate(tmp_path: Path) -> None:
    run = new(tmp_path / "run", train__schedule="constant", train__warmup=0)
    played = play(run, Script(commands={4: ["schedule linear"], 6: ["schedule constant"]}))
    rates = [one.lr for one in played.events(StepFinished)]
    assert rates[:5] == [rates[0]] * 5
    assert rates[5] == pytest.approx(rates[0] * 3 / 4)
    assert rates[6] == rates[7] == pytest.approx(rates[0] / 2)


@pytest.mark.long
def test_a_model_without_an_adapter_refuses_a_dropout(tmp_path: Path) -> None:
    run = new(tmp_path / "run", adapter="none", model__quantize="none")
    played = play(run, Script(early=["dropout 0.1", "weight_decay 0.1"]))
    (failed,) = played.events(CommandFailed)
    assert failed.reason == (
        "not possible in this run: all weights are trained, and the dropout belongs to an adapter"
    )
