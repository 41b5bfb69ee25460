from __future__ import annotations

import pytest

from fttui.engine.protocol.events import StepFinished
from fttui.engine.protocol.step_memory import memory_in_use


@pytest.mark.parametrize(
    ("measured", "used"),
    [
        ({"mem_reserved_bytes": 8, "mem_allocated_bytes": 6, "rss_bytes": 99}, 8),
        ({"mem_allocated_bytes": 6, "rss_bytes": 99}, 6),
        ({"mem_allocated_bytes": 0, "mem_reserved_bytes": 0, "rss_bytes": 99}, 0),
        ({"rss_bytes": 5}, 5),
        ({}, None),
    ],
)
def test_memory_in_use_is_the_same_for_app_report_and_log(
    measured: dict[str, int], used: int | None
) -> None:
    step = StepFinished(loss=1.0, **measured)  # type: ignore[arg-type]  # integers by name
    assert memory_in_use(step) == used
