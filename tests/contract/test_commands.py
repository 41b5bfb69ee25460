"""The command table: every row can be typed, explained and gated."""

from __future__ import annotations

from typing import get_args

import pytest

from fttui.engine.core.settings import SETTINGS
from fttui.engine.protocol.commands import (
    COMMANDS,
    SPEC_OF,
    AddNote,
    AnyCommand,
    Evaluate,
    GenerateSample,
    MeasureGradients,
    Pause,
    ProfileSteps,
    Recover,
    ResetLr,
    Resume,
    Rollback,
    RunSteps,
    SaveCheckpoint,
    ScaleLr,
    SetClip,
    SetLr,
    SetPolicy,
    SkipBatches,
    Stop,
    describe_command,
    parse_command,
    why_illegal,
)
from fttui.engine.protocol.states import RunState

EXAMPLES: list[AnyCommand] = [
    ScaleLr(factor=0.5),
    SetLr(value=1e-4),
    ResetLr(),
    SetClip(),
    SetClip(value=0.5),
    SetClip(percentile=90),
    Pause(),
    Resume(),
    RunSteps(steps=20),
    SaveCheckpoint(),
    SaveCheckpoint(pin=True),
    SaveCheckpoint(pin=True, note="before the new data"),
    SaveCheckpoint(note="a note"),
    Rollback(checkpoint="last"),
    Rollback(checkpoint="step-000120", lr_scale=0.5, clip=0.3, skip=4),
    Evaluate(),
    GenerateSample(prompt="Once upon a time"),
    SkipBatches(steps=3),
    AddNote(text="new data from here on"),
    SetPolicy(nonfinite="rollback"),
    SetPolicy(autopilot="act"),
    Recover(),
    Recover(anomaly="spike-120-t2"),
    MeasureGradients(),
    ProfileSteps(),
    ProfileSteps(steps=5),
    Stop(),
    Stop(save=False),
]


def test_the_examples_cover_every_command_and_every_row() -> None:
    assert {type(command) for command in EXAMPLES} == set(get_args(AnyCommand))
    assert set(SPEC_OF) == set(get_args(AnyCommand))
    assert len({spec.verb for spec in COMMANDS}) == len(COMMANDS)


@pytest.mark.parametrize("command", EXAMPLES, ids=describe_command)
def test_what_is_described_can_be_typed(command: AnyCommand) -> None:
    assert parse_command(describe_command(command)) == command


@pytest.mark.parametrize("spec", COMMANDS, ids=lambda spec: spec.verb)
def test_every_row_explains_itself(spec: object) -> None:
    assert spec in COMMANDS
    row = next(row for row in COMMANDS if row is spec)
    assert row.usage.startswith(row.verb)
    assert row.help
    assert row.legal
    assert not any(state.ended for state in row.legal)


@pytest.mark.parametrize("command", EXAMPLES, ids=describe_command)
@pytest.mark.parametrize("state", list(RunState))
def test_an_illegal_command_says_why(command: AnyCommand, state: RunState) -> None:
    why = why_illegal(command, state)
    assert (why is None) == (state in SPEC_OF[type(command)].legal)
    assert why is None or state.value in why


def test_settings_are_commands() -> None:
    assert set(SETTINGS) < set(get_args(AnyCommand))
