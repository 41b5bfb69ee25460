"""What the app may claim about control over a run."""

from __future__ import annotations

import numpy as np
import pytest

from fttui.engine.protocol.events import Record
from fttui.engine.protocol.requests import Beat
from fttui.tui.view_model.app_state import AppState, fold
from fttui.tui.view_model.connection_port import BeatArrived, Delivery, RecordsArrived
from fttui.tui.view_model.link import LinkView
from tests.support.engine_double import step_event


def with_controller(viewer: str | None) -> LinkView:
    beat = Beat(time=1.0, last_seq=1, engine_alive=True, controller=viewer,
                controller_viewer=viewer)  # fmt: skip
    return LinkView(beat=beat)


@pytest.mark.parametrize(
    ("link", "controls", "controller"),
    [
        (LinkView(), False, None),
        (with_controller(None), False, None),
        (with_controller("bob"), False, "bob"),
        (with_controller("ann"), True, "ann"),
    ],
)
def test_control_is_known_from_the_heartbeat_only(
    link: LinkView, controls: bool, controller: str | None
) -> None:
    state = AppState(viewer="ann", link=link)
    assert (state.controls, state.controller) == (controls, controller)


def test_records_that_wait_are_folded_together_as_one_by_one() -> None:
    records = [
        Record(seq=seq, time=float(seq), step=seq, timeline=1, event=step_event(seq))
        for seq in range(1, 9)
    ]
    deliveries: list[Delivery] = [RecordsArrived([record], unknown=1) for record in records]
    deliveries.insert(5, BeatArrived(Beat(time=9.0, last_seq=8, engine_alive=True)))
    together = fold(AppState(), deliveries, 9.0)
    single = AppState()
    for delivery in deliveries:
        single = fold(single, [delivery], 9.0)
    assert together.link == single.link
    assert (together.run.seq, together.run.steps_seen, together.run.unknown) == (8, 8, 8)
    loss, expected = (one.run.branches[-1].curves["loss"] for one in (together, single))
    np.testing.assert_array_equal(loss.ys, expected.ys)
