"""What a command changes in the settings of a run."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fttui.engine.core.settings import Inapplicable, SettingsContext, apply_setting, leashed
from fttui.engine.protocol.commands import ScaleLr, SetPolicy, SetSchedule
from fttui.engine.protocol.settings import Leash, RunSettings

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


LEASH = Leash(lr_low=0.25, lr_high=2.0)
FACTORS = st.floats(1e-3, 1e3)


@given(st.lists(st.tuples(st.booleans(), FACTORS), max_size=12))
def test_agents_together_stay_in_the_range_around_what_a_person_set(
    commands: list[tuple[bool, float]],
) -> None:
    settings, person = RunSettings(), 1.0
    for by_agent, factor in commands:
        wanted = msgspec.structs.replace(settings, lr_scale=factor)
        try:
            settings = leashed(settings, wanted, LEASH if by_agent else None)
        except Inapplicable:
            assert by_agent
            assert not 0.25 * person <= factor <= 2 * person
            continue
        if by_agent:
            assert 0.2499 * person <= settings.lr_scale <= 2.001 * person
        else:
            person = settings.lr_scale


def test_a_person_who_confirms_the_present_learning_rate_moves_the_range() -> None:
    halved = RunSettings(lr_scale=0.5, lr_scale_before_agents=1.0)
    context = SettingsContext(5, 1e-4, lambda p: None)
    again = apply_setting(halved, ScaleLr(factor=0.5), context).settings
    assert leashed(halved, again, LEASH) == halved
    confirmed = leashed(halved, again, None)
    assert confirmed.lr_scale_before_agents is None
    with pytest.raises(Inapplicable):
        leashed(confirmed, msgspec.structs.replace(confirmed, lr_scale=2.0), LEASH)
    clipped = msgspec.structs.replace(halved, clip=0.5)
    assert leashed(halved, clipped, None) == clipped


def test_an_agent_that_leaves_the_learning_rate_alone_has_no_range() -> None:
    before = RunSettings(lr_scale=0.01)
    after = msgspec.structs.replace(before, clip=0.5)
    assert leashed(before, after, LEASH) == after


@pytest.mark.parametrize(("start", "fits"), [(99, True), (100, False), (10**9, False)])
def test_a_schedule_that_would_begin_after_the_last_step_is_refused(start: int, fits: bool) -> None:
    context = replace(CONTEXT, total_steps=100)
    command = SetSchedule(shape="linear", start=start)
    if fits:
        assert apply_setting(RunSettings(), command, context).settings.schedule is not None
    else:
        with pytest.raises(Inapplicable, match=r"ends after step 100.*from 0 to 99"):
            apply_setting(RunSettings(), command, context)
    unknown = replace(CONTEXT, total_steps=0)
    assert apply_setting(RunSettings(), command, unknown).settings.schedule is not None
