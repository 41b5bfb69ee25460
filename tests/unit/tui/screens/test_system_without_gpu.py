"""The system screen of a run without a GPU leaves out the plots that nothing can fill."""

from __future__ import annotations

import pytest

from fttui.tui.plot.system_panels import SYSTEM, UNMEASURED_HIDDEN, measured
from fttui.tui.view_model.app_state import AppState
from fttui.tui.view_model.reducer import apply_many
from fttui.tui.view_model.run_view import RunView
from tests.support.session_double import Script


@pytest.mark.parametrize("gpu", [True, False])
def test_only_what_is_measured_has_a_plot(gpu: bool) -> None:
    before, after = Script(gpu=gpu).start(), Script(gpu=gpu).start().run().train(3)
    for script, shown in ((before, True), (after, gpu)):
        state = AppState(run=apply_many(RunView(), script.records))
        for panel in SYSTEM:
            if panel.id in UNMEASURED_HIDDEN:
                assert measured(panel, state) is shown, panel.id


def test_the_hidden_panels_exist() -> None:
    assert {panel.id for panel in SYSTEM} >= UNMEASURED_HIDDEN
