"""What `fttui check` says of the data before a run is in the app's table of the data during it."""

from __future__ import annotations

from fttui.engine.data.mix_plan import MIX_FACTS
from fttui.engine.data.validate import SHOWN_FACTS
from fttui.tui.screens.tables.data import FACTS


def test_the_app_shows_every_fact_that_check_shows() -> None:
    assert set(FACTS) == {*SHOWN_FACTS, *MIX_FACTS}
