"""What the app may claim about control over a run."""

from __future__ import annotations

import pytest

from fttui.engine.protocol.requests import Beat
from fttui.tui.view_model.app_state import AppState
from fttui.tui.view_model.link import LinkView


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
