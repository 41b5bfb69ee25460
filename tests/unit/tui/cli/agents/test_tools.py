"""The tools of `fttui mcp`: commands from the table, and curves thinned without losing extremes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fttui.engine.errors import ConfigError
from fttui.engine.protocol.commands import AnyCommand, Stop, TrainingCommand, spec_of
from fttui.engine.protocol.events import StepFinished
from fttui.engine.protocol.settings import AgentMode
from fttui.tui.cli.agents.command_tools import CommandTool, command_tools
from fttui.tui.cli.agents.mcp import _call
from fttui.tui.cli.agents.run_tools import curve, number
from fttui.tui.view_model.reducer import apply_many
from fttui.tui.view_model.run_view import RunView
from tests.contract.examples import record
from tests.contract.test_commands import EXAMPLES

pytest.importorskip("jsonschema")

TRAINING = [c for c in EXAMPLES if isinstance(c, TrainingCommand)]


def arguments_of(command: AnyCommand) -> dict[str, Any]:
    """The arguments of a call, as JSON has them."""
    fields = msgspec.to_builtins(command)
    return {"run": "r", "reason": "why", **{k: v for k, v in fields.items() if k != "k"}}


@pytest.mark.parametrize("mode", ["propose", "act"])
def test_every_command_of_the_training_is_a_tool_and_no_other(mode: AgentMode) -> None:
    tools = command_tools(mode)
    assert {tool.spec.command for tool in tools.values()} == {type(c) for c in TRAINING}
    assert {"confirm", "decline", "propose"}.isdisjoint(tools)
    assert all(tool.input_schema["additionalProperties"] is False for tool in tools.values())


@pytest.mark.parametrize("command", TRAINING, ids=str)
def test_a_call_gives_the_command_that_its_arguments_describe(command: AnyCommand) -> None:
    tool = CommandTool(spec_of(command), "act")
    arguments = arguments_of(command)
    assert set(arguments) <= set(tool.input_schema["properties"])
    made, reason, proposes = tool.read(arguments)
    assert (made, reason) == (command, "why")
    assert proposes is (tool.spec.by_agents == "confirmed")
    assert CommandTool(spec_of(command), "propose").read(arguments)[2] is True


@pytest.mark.parametrize(
    ("name", "wrong", "said"),
    [
        ("lr_scale", {"factor": 0}, "must be > 0"),
        ("clip", {}, "needs VALUE, pNN or off"),
        ("policy", {}, "expected nonfinite"),
        ("policy", {"nonfinite": "halt", "autopilot": "act"}, "expected nonfinite"),
        ("policy", {"autopilot": "always"}, "expected nonfinite"),
        ("rollback", {"checkpoint": "last", "skip": -1}, "skip"),
    ],
)
def test_a_wrong_call_says_what_is_wrong(name: str, wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        command_tools("act")[name].read({"run": "r", "reason": "why", **wrong})


@pytest.mark.parametrize(
    ("name", "wrong", "said"),
    [
        ("lr_scale", {}, "factor"),
        ("lr_scale", {"factor": "half"}, "factor: 'half'"),
        ("lr_scale", {"factor": True}, "factor: True"),
        ("lr_scale", {"factor": 0.5, "step": 3}, "step"),
        ("lr_scale", {"factor": 0.5, "reason": " "}, "reason"),
        ("lr_scale", {"factor": 0.5, "propose": "true"}, "propose: 'true'"),
        ("get_metrics", {"names": [1]}, "names: 0: 1"),
        ("get_metrics", {"names": "loss"}, "names: 'loss'"),
        ("get_metrics", {"points": 5000}, "points: 5000 is greater than the maximum of 1000"),
        ("get_metrics", {"first_step": -1}, "first_step: -1"),
        ("show_run", {"run": None}, "run: None"),
        ("list_runs", {"run": "r"}, "run"),
        ("no_tool", {}, "no tool no_tool"),
    ],
)
async def test_a_call_that_no_schema_allows_reaches_no_run(
    tmp_path: Path, name: str, wrong: dict[str, Any], said: str
) -> None:
    given = {"run": "r", **({"reason": "why"} if name == "lr_scale" else {}), **wrong}
    with pytest.raises(ConfigError, match=said):
        await _call(tmp_path, command_tools("act"), name, given, "a client")


def test_a_tool_that_loses_work_says_so_unless_it_only_proposes() -> None:
    assert CommandTool(spec_of(Stop()), "act").spec.destructive
    assert not CommandTool(spec_of(Stop()), "act").only_proposed
    assert CommandTool(spec_of(Stop()), "propose").only_proposed


def view_of(losses: list[float]) -> RunView:
    records = [
        msgspec.structs.replace(record(StepFinished(loss=loss)), seq=step, step=step, timeline=1)
        for step, loss in enumerate(losses, 1)
    ]
    return apply_many(RunView(), records)


def test_a_short_curve_is_given_step_by_step() -> None:
    found = curve(view_of([3.0, math.nan, 1.0]), "loss", 0, math.inf, 10)
    assert found == {"columns": ["step", "value"], "rows": [[1, 3.0], [2, "nan"], [3, 1.0]]}
    assert curve(view_of([3.0]), "speed", 0, math.inf, 10) is None


def test_a_thinned_curve_keeps_peaks_and_counts_what_is_not_finite() -> None:
    losses = [1.0] * 1000
    losses[500], losses[700] = 99.0, math.nan
    found = curve(view_of(losses), "loss", 101, 1000, 9)
    assert found is not None
    rows = found["rows"]
    assert len(rows) == 9
    assert (rows[0][0], rows[-1][1]) == (101, 1000)
    assert max(row[4] for row in rows) == 99.0
    assert sum(row[5] for row in rows) == 1
    assert found["values"] == 900


def test_a_number_that_json_lacks_becomes_text() -> None:
    assert [number(v) for v in (1.5, None, math.inf, math.nan)] == [1.5, None, "inf", "nan"]
