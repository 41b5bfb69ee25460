"""The memory that is drawn: of the accelerator if it is measured, else of the process."""

from __future__ import annotations

from typing import Any

import pytest

from fttui.engine.protocol.events import Record
from fttui.tui.plot.panels import memory_now, on_gpu
from fttui.tui.view_model.reducer import apply_many
from fttui.tui.view_model.run_view import RunView
from tests.support.session_double import Script


def with_memory(**figures: Any) -> RunView:
    script = Script().start().run().train(1)
    (step,) = [r for r in script.records if type(r.event).__name__ == "StepFinished"]
    unknown = dict.fromkeys(
        ["mem_reserved_bytes", "mem_allocated_bytes", "mem_total_bytes", "rss_bytes"]
    )
    fields = {name: getattr(step.event, name) for name in step.event.__struct_fields__}
    event = type(step.event)(**{**fields, **unknown, **figures})
    return apply_many(RunView(), [Record(seq=1, time=1.0, step=1, timeline=1, event=event)])


@pytest.mark.parametrize(
    ("figures", "gpu", "shown"),
    [
        ({"mem_reserved_bytes": 8, "mem_allocated_bytes": 6, "mem_total_bytes": 10}, True, (8, 10)),
        ({"mem_allocated_bytes": 6, "mem_total_bytes": 10}, True, (6, 10)),
        ({"mem_allocated_bytes": 6}, True, (6, 0)),
        ({"rss_bytes": 5, "mem_total_bytes": 10}, False, (5, 10)),
        ({"rss_bytes": 5}, False, (5, 0)),
        ({}, False, None),
    ],
)
def test_the_memory_in_use_and_in_total(
    figures: dict[str, int], gpu: bool, shown: tuple[int, int] | None
) -> None:
    run = with_memory(**figures)
    assert on_gpu(run) == gpu
    assert memory_now(run) == shown


def test_nothing_is_known_before_the_first_step() -> None:
    assert memory_now(RunView()) is None
    assert not on_gpu(RunView())
