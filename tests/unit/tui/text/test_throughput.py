"""Batches of a script need not have tokens; then samples are counted, not 0 tokens."""

from __future__ import annotations

import pytest

from fttui.engine.protocol.events import Record, RunStarted, StepFinished
from fttui.tui.cli.headless import HeadlessLog
from fttui.tui.plot.panels import THROUGHPUT
from fttui.tui.text.throughput import throughput, throughput_metric
from fttui.tui.view_model.app_state import AppState
from fttui.tui.view_model.reducer import apply_many
from fttui.tui.view_model.run_view import RunView

IMAGES = StepFinished(loss=1.0, samples=20, samples_per_s=68.04, step_s=0.3)
TEXTS = StepFinished(loss=1.0, samples=2, samples_per_s=4.0, tokens=600, tokens_per_s=1200.0)
FEW = StepFinished(loss=None)


@pytest.mark.parametrize(
    ("step", "said"),
    [(IMAGES, "68.0 samples/s"), (TEXTS, "1,200 tok/s"), (FEW, "0 tok/s")],
)
def test_a_step_is_counted_in_tokens_or_else_in_samples(step: StepFinished, said: str) -> None:
    metric = throughput_metric(step)
    assert throughput(metric, getattr(step, metric), exact=True) == said
    record = Record(seq=1, time=1.0, step=1, timeline=1, event=step)
    (line,) = HeadlessLog().lines(record, 0.0)
    assert said in line.split("  ")


def test_the_plot_draws_what_is_counted() -> None:
    for step, metric in ((IMAGES, "samples_per_s"), (TEXTS, "tokens_per_s")):
        record = Record(seq=1, time=1.0, step=1, timeline=1, event=step)
        state = AppState(run=apply_many(RunView(), [record]))
        assert [curve.name for curve in THROUGHPUT.curves(state)] == [metric]
        unit = throughput(metric, 0.0).split()[1]
        assert any(unit in entry.text for entry in THROUGHPUT.entries(state))


@pytest.mark.parametrize(("total", "said"), [(0, "loop on m, cpu"), (9, "loop on m, 9 steps, cpu")])
def test_a_start_names_no_number_of_steps_that_is_not_known(total: int, said: str) -> None:
    numbers = {"incarnation": 1, "pid": 1, "world_size": 1, "micro_batch_size": 1}
    words = {"name": "n", "host": "h", "task": "loop", "model": "m", "devices": ["cpu"]}
    started = RunStarted(**words, **numbers, accumulation=1, total_steps=total)  # type: ignore[arg-type]
    record = Record(seq=1, time=1.0, step=0, timeline=1, event=started)
    assert f"run n: {said}" in list(HeadlessLog().lines(record, 0.0))
