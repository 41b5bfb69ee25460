"""Figures that events derive from their fields."""

from __future__ import annotations

import msgspec
import pytest

from fttui.engine.protocol import events
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


NUMBERS = [
    (kind.__name__, field.name, field.default)
    for kind in vars(events).values()
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    for field in msgspec.structs.fields(kind)
    if type(field.default) in (int, float)
]


def test_a_number_that_an_event_lacks_is_zero() -> None:
    """Older journals lack it; only a factor is then one."""
    assert len(NUMBERS) > 20
    others = {(kind, name): value for kind, name, value in NUMBERS if value != 0}
    assert others == {("RunSettings", "lr_scale"): 1.0, ("StepFinished", "lr_scale"): 1.0}
