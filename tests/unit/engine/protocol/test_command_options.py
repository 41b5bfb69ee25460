"""Options of a rollback: only those that exist, each with a value."""

from __future__ import annotations

import pytest

from fttui.engine.protocol.command_args import CommandError
from fttui.engine.protocol.commands import Rollback, parse_command, spec_of
from fttui.engine.protocol.states import RunState


@pytest.mark.parametrize("option", ["foo=1", "lr", "lr=", "=1", "skips=2", "LR=0.5", "again"])
def test_an_unknown_option_of_a_rollback_is_refused(option: str) -> None:
    with pytest.raises(CommandError, match=f"unknown option '{option}'.*lr=F, clip=V or skip=N"):
        parse_command(f"rollback last {option}")
    with pytest.raises(CommandError, match="unknown option"):
        parse_command(f"rollback last lr=0.5 {option}")


def test_options_of_a_rollback_come_in_any_order() -> None:
    expected = Rollback(checkpoint="last", lr_scale=0.5, clip=0.3, skip=4)
    assert parse_command("rollback last skip=4 lr=0.5 clip=0.3") == expected


@pytest.mark.parametrize(
    ("command", "states"),
    [("rollback last", "halted or paused or running"), ("eval", "paused or running")],
)
def test_a_refusal_names_the_states_in_which_a_command_works(command: str, states: str) -> None:
    spec = spec_of(parse_command(command))
    said = spec.why_illegal(RunState.STARTING) or ""
    assert said.endswith(f"works while {states}; the run is starting"), said
