"""The memory that is drawn: of the accelerator if it is measured, else of the process."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fttui.engine.protocol.events import Record
from fttui.tui.plot.panels import LEARNING_RATE, LOSS, MEMORY, memory_now, on_gpu
from fttui.tui.view_model.app_state import AppState
from fttui.tui.view_model.branches import SMOOTHINGS, smoothed
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


@pytest.mark.parametrize(
    ("smoothing", "part", "drawn"),
    [
        (0, 0, [("loss", "raw"), (smoothed(SMOOTHINGS[0]), "ema"), ("eval.loss", "eval")]),
        (len(SMOOTHINGS), 0, [("loss", "live"), ("eval.loss", "eval")]),
        (0, 1, [("loss.dpo", "live")]),
        (len(SMOOTHINGS), 1, [("loss.dpo", "live")]),
    ],
)
def test_the_smoothed_and_the_evaluated_loss_accompany_the_total_loss_only(
    smoothing: int, part: int, drawn: list[tuple[str, str]]
) -> None:
    run = with_memory(parts={"dpo": 0.5})
    state = AppState(run=run)
    state = replace(state, plot=replace(state.plot, smoothing=smoothing, part=part))
    assert [(curve.name, curve.style) for curve in LOSS.curves(state)] == drawn


def test_the_ticks_of_the_learning_rate_are_short() -> None:
    assert LEARNING_RATE.label is not None
    assert [LEARNING_RATE.label(rate) for rate in (0, 2e-4, 1.5e-5)] == ["0", "2e-4", "1.5e-5"]


@pytest.mark.parametrize(("schedule", "said"), [(0.0, True), (1e-5, False)])
def test_the_rate_of_0_at_the_first_step_is_explained(schedule: float, said: bool) -> None:
    run = with_memory(lr=schedule, lr_schedule=schedule, rss_bytes=1)
    title = " ".join(entry.text for entry in LEARNING_RATE.title(AppState(run=run)))
    assert ("warm-up starts at 0" in title) is said


@pytest.mark.parametrize(
    ("figures", "filled"),
    [
        ({"mem_reserved_bytes": 8, "mem_allocated_bytes": 6}, ["kept", "held"]),
        ({"rss_bytes": 5}, ["held"]),
    ],
)
def test_memory_is_drawn_as_a_stack(figures: dict[str, int], filled: list[str]) -> None:
    curves = MEMORY.curves(AppState(run=with_memory(**figures)))
    assert [curve.style for curve in curves if curve.filled] == filled


def test_a_loss_that_the_script_does_not_report_is_a_gap_and_said_in_the_title() -> None:
    run = with_memory(loss=None)
    assert run.live_value("loss", 1) is None
    texts = [part.text for part in LOSS.entries(AppState(run=run))]
    assert "not reported by the script" in texts
    known = with_memory(loss=2.0)
    assert "not reported by the script" not in [p.text for p in LOSS.entries(AppState(run=known))]
