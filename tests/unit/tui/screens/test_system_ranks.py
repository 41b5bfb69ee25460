from __future__ import annotations

import pytest

from fttui.engine.protocol.events import StepFinished
from fttui.engine.protocol.thresholds import SLOW_RANK_RATIO, SLOW_STEP_RATIO
from fttui.tui.screens.plots.system import _ranks
from fttui.tui.view_model.app_state import AppState
from fttui.tui.view_model.reducer import apply_many
from fttui.tui.view_model.run_view import RunView
from tests.support.session_double import Script


@pytest.mark.parametrize(("seconds", "marked"), [(1.2, False), (1.21, True)])
def test_a_rank_is_marked_where_its_step_is_longer_than_a_fifth_over_the_median(
    seconds: float, marked: bool
) -> None:
    script = Script().start().run().train(1)
    script.step += 1
    script.add(StepFinished(loss=1.0, rank_s=[1.0, seconds, 1.0]))
    rows = [row.plain for row in _ranks(AppState(run=apply_many(RunView(), script.records)))]
    assert any("slow in this step" in row for row in rows) == marked


def test_one_step_needs_more_than_the_smoothed_time_of_many() -> None:
    assert (SLOW_RANK_RATIO, SLOW_STEP_RATIO) == (1.05, 1.2)
