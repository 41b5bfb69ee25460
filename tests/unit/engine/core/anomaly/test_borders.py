"""Parts of the detector at single values that runs of noise do not meet."""

from __future__ import annotations

import pytest

from fttui.engine.core.anomaly.progress import Overfit
from fttui.engine.core.anomaly.state import State
from fttui.engine.core.anomaly.system import Throughput
from fttui.engine.core.anomaly.trend import ColdStart
from fttui.engine.core.anomaly.verdicts import Yardstick


@pytest.mark.parametrize("loss", [0.0, -0.5])
def test_an_evaluation_that_is_not_positive_is_left_out(loss: float) -> None:
    overfit = Overfit()
    assert overfit.update(loss, 1.0) is None
    assert overfit.best is None


def test_a_verdict_on_one_value_takes_the_newest() -> None:
    state, by = State(), Yardstick(channel="eval", level=2.0, records=2, last=1)
    state.verdicts.watch("a", by)
    assert state.verdicts.update({"eval": 9.0}, 1, state.back) == []
    (found,) = state.verdicts.update({"eval": 1.0}, 2, state.back)
    assert (found.verdict, found.level_after) == ("recovered", 1.0)


@pytest.mark.parametrize(("rate", "low"), [(800.0, False), (799.0, True)])
def test_exactly_four_fifths_of_the_throughput_is_no_drop(rate: float, low: bool) -> None:
    throughput = Throughput()
    for _ in range(60):
        throughput.update(1000.0)
    assert any(throughput.update(rate) for _ in range(60)) == low


@pytest.mark.parametrize("level", [0.01, 0.5, 2.0])
@pytest.mark.parametrize(("factor", "blown"), [(3.0, False), (3.1, True)])
def test_a_start_blows_up_beyond_three_times_its_losses(
    level: float, factor: float, blown: bool
) -> None:
    start = ColdStart()
    found = [start.update(loss) for loss in (level, level, factor * level, factor * level)]
    assert found == [None, None, None, level if blown else None]
