"""What the screens say, in every state and size, as text; one app per state and size.

`pytest tests/snapshots --snapshot-update` writes the files again; read the diff before committing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fttui.engine.protocol.events import StateChanged
from fttui.engine.protocol.states import RunState
from fttui.tui.connection.run_list import read_other_run
from fttui.tui.screens.registry import SCREENS
from fttui.tui.view_model.connection_port import Link
from tests.support.matrix import in_part
from tests.support.session_double import FakeSession, Script, eventful, finished, live_spike
from tests.unit.tui.app.driving import driven, text_of, until
from tests.unit.tui.app.folders import write_run

TEXTS = Path(__file__).parent / "texts"
SIZES = [(80, 24), (120, 40), (200, 50)]


def _held(state: RunState) -> Callable[[], Script]:
    return lambda: live_spike().add(StateChanged(state=state))


def _lost(session: FakeSession) -> None:
    session.engine_alive = False


def _ended(session: FakeSession) -> None:
    session.link, session.read_only = Link.ENDED, True


def _as_is(session: FakeSession) -> None:
    return None


STATES: dict[str, tuple[Callable[[], Script], Callable[[FakeSession], None]]] = {
    "live": (eventful, _as_is),
    "empty": (Script, _as_is),
    "paused": (_held(RunState.PAUSED), _as_is),
    "halted": (_held(RunState.HALTED), _as_is),
    "lost": (eventful, _lost),
    "finished": (finished, _ended),
}


@pytest.fixture(autouse=True)
def _one_place_and_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


MATRIX = [(state, size) for state in STATES for size in SIZES]
KEPT = [("halted", SIZES[0]), ("finished", (120, 40))]


@pytest.mark.parametrize(
    ("state", "size"),
    in_part(MATRIX, KEPT),
    ids=[f"{state}-{width}x{height}" for state, (width, height) in MATRIX],
)
async def test_the_screens_say_what_they_said(state, size, tmp_path, request) -> None:
    make, tweak = STATES[state]
    session = FakeSession(make())
    tweak(session)
    run = write_run(tmp_path / "runs", session.run_id, session.script)
    other = write_run(tmp_path / "runs", "other-20260102-000000", finished(), lr="5e-5")
    pages = []
    async with driven(session, size=size, folder=run.path) as (app, pilot):
        await until(pilot, lambda: bool(app.state.config.resolved))
        app.state = replace(app.state, others=(await read_other_run(other.path),))
        for mode in SCREENS:
            app.go(mode)
            if mode == "data" and app.state.run.started:
                await until(pilot, lambda: bool(app.state.data_sample))
            if mode == "runs":
                await until(pilot, lambda: "other-20260102" in text_of(app))
            await pilot.pause()
            app.redraw()
            await pilot.pause()
            await pilot.pause()
            rows = [row.rstrip() for row in text_of(app).split("\n")]
            pages.append("\n".join([f"=== {mode}", *rows]))
    found = "\n".join(pages) + "\n"
    file = TEXTS / f"{state}-{size[0]}x{size[1]}.txt"
    if request.config.getoption("--snapshot-update"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(found, encoding="utf-8")
    assert found == file.read_text(encoding="utf-8")
