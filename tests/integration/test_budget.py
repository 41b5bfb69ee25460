"""A budget ends a run with a checkpoint from which it goes on exactly."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fttui.engine.config.checks.budget import BudgetUsedUp, require_budget_left
from fttui.engine.config.load import read_resolved
from fttui.engine.protocol.events import CommandApplied, StepFinished
from fttui.engine.protocol.states import RunState
from tests.support.training import new_run, play


def test_a_run_stops_at_its_budget_and_goes_on_exactly_with_a_higher_one(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    whole = play(new_run(tmp_path / "whole", "sft"))
    limited = new_run(tmp_path, "sft", budget__hours=1e-9)
    first = play(limited)
    assert (first.outcome.state, first.outcome.reason[:24]) == (
        RunState.STOPPED, "budget.hours is used up:",
    )  # fmt: skip
    (stopped,) = first.events(CommandApplied)
    assert (stopped.issuer, stopped.command) == ("budget", "stop")
    assert first.outcome.checkpoint == "step-000001"
    used = first.outcome.usage
    assert used is not None
    assert used.seconds > 0
    with pytest.raises(BudgetUsedUp):
        require_budget_left(read_resolved(limited.config), used, limited.id)

    text = limited.config.read_text()
    limited.config.write_text(re.sub(r"(?m)^  hours: .*$", "  hours: 9.0", text))
    second = play(limited, resume="last")
    losses = [e.loss for e in whole.events(StepFinished)]
    assert [e.loss for e in second.events(StepFinished)] == losses
    assert second.outcome.usage is not None
    assert second.outcome.usage.seconds > used.seconds
