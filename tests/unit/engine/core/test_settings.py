"""What a command changes in the settings of a run."""

from __future__ import annotations

import pytest

from fttui.engine.core.settings import SettingsContext, apply_setting
from fttui.engine.protocol.commands import SetPolicy
from fttui.engine.protocol.settings import RunSettings

CONTEXT = SettingsContext(step=10, lr_schedule=2e-4, norm_percentile=lambda p: p / 100)


@pytest.mark.parametrize(
    ("command", "old", "new"),
    [
        (SetPolicy(nonfinite="halt"), "nonfinite skip", "nonfinite halt"),
        (SetPolicy(autopilot="act"), "autopilot propose", "autopilot act"),
        (
            SetPolicy(nonfinite="halt", autopilot="act"),
            "nonfinite skip, autopilot propose",
            "nonfinite halt, autopilot act",
        ),
        (SetPolicy(), "", ""),
    ],
)
def test_a_policy_changes_what_it_names_and_nothing_else(
    command: SetPolicy, old: str, new: str
) -> None:
    before = RunSettings(nonfinite="skip", autopilot="propose", paused=True, pause_at_step=12)
    change = apply_setting(before, command, CONTEXT)
    assert (change.old, change.new) == (old, new)
    after = change.settings
    assert after.nonfinite == (command.nonfinite or "skip")
    assert after.autopilot == (command.autopilot or "propose")
    assert (after.paused, after.pause_at_step) == (True, 12)
