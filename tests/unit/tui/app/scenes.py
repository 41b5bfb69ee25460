"""The states of run, link and role that actions are tried in."""

from __future__ import annotations

from collections.abc import Callable

from fttui.engine.protocol.events import StateChanged
from fttui.engine.protocol.states import RunState
from fttui.tui.preferences import Preferences
from fttui.tui.view_model.connection_port import Link
from tests.support.session_double import (
    FakeSession,
    Script,
    eventful,
    failed,
    finished,
    live_spike,
    loading,
)


def _in(state: RunState) -> Callable[[], Script]:
    return lambda: eventful().add(StateChanged(state=state))


def _nothing(session: FakeSession) -> None:
    return None


def _link(link: Link) -> Callable[[FakeSession], None]:
    def tweak(session: FakeSession) -> None:
        session.link = link

    return tweak


def _other(session: FakeSession) -> None:
    session.controller = ("other", "bob@lab")


def _read_only(session: FakeSession) -> None:
    session.read_only = True


def _dead(session: FakeSession) -> None:
    session.engine_alive = False


Scene = tuple[Callable[[], Script], Callable[[FakeSession], None], Preferences | None]
SCENES: dict[str, Scene] = {
    **{state.value: (_in(state), _nothing, None) for state in RunState if not state.ended},
    "spike": (live_spike, _nothing, None),
    "loading": (loading, _nothing, None),
    "empty": (Script, _nothing, None),
    "failed": (failed, _nothing, None),
    "finished": (finished, _link(Link.ENDED), None),
    "connecting": (eventful, _link(Link.CONNECTING), None),
    "stale": (eventful, _link(Link.STALE), None),
    "link lost": (eventful, _link(Link.LOST), None),
    "someone else": (eventful, _other, None),
    "read-only": (eventful, _read_only, None),
    "engine gone": (eventful, _dead, None),
}
