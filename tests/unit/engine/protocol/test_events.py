"""Figures that events derive from their fields."""

from __future__ import annotations

import pytest

from fttui.engine.protocol.events import StepsProfiled


@pytest.mark.parametrize(
    ("step_s", "peak", "mfu"),
    [(0.5, 100.0, 0.4), (0.0, 100.0, None), (0.5, None, None), (0.5, 0.0, None)],
)
def test_utilization_is_unknown_without_a_peak_rate_or_a_step(
    step_s: float, peak: float | None, mfu: float | None
) -> None:
    event = StepsProfiled(steps=1, step_s=step_s, parts=[], flops=20.0, peak_flops_per_s=peak)
    assert event.mfu == mfu
