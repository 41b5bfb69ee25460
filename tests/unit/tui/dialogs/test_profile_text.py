"""A profile in words."""

from __future__ import annotations

from fttui.engine.protocol.event_parts import ProfilePart
from fttui.engine.protocol.events import StepsProfiled
from fttui.tui.dialogs.profile_text import profile_lines


def test_a_profile_says_where_the_time_went_and_what_to_do() -> None:
    found = StepsProfiled(
        steps=2,
        step_s=0.4,
        parts=[
            ProfilePart(name="forward", host_s=0.1, device_s=0.02),
            ProfilePart(name="backward", host_s=0.3, device_s=0.06),
            ProfilePart(name="judge", host_s=0.0),
        ],
        kinds={"matrix products": 0.06, "elementwise": 0.02},
        idle=0.8,
        launches=12_345.0,
        flops=4e12,
        peak_flops_per_s=7e14,
        advice=["launch-bound: raise train.batch"],
    )
    lines = profile_lines(found)
    assert "over 2 steps" in lines[0]
    assert lines[1].startswith("forward    25 % ██████ ")
    assert lines[2].startswith("backward   75 % ██████████████████ ")
    assert lines[3].startswith("check       0 % ")
    assert "device idle 80 %, 12,345 kernels per step" in lines
    assert "MFU 1.4 % of the 700 TFLOP/s that a large matrix product reaches" in lines
    assert "device time: matrix products 75 %, elementwise 25 %" in lines
    assert lines[-1] == "→ launch-bound: raise train.batch"
    assert "█" not in "".join(profile_lines(found, bar_cells=0))
    assert profile_lines(found, bar_cells=60)[2].count("█") == 45
