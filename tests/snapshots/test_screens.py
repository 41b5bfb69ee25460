"""What every screen looks like; `pytest tests/snapshots --snapshot-update` after looking at it."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
import pytest

from fttui.engine.core.reports.page import to_markdown
from fttui.engine.protocol.chat.events import ChatAnswered, ChatAsked, ChatContinued
from fttui.engine.protocol.events import AnomalyRaised, StateChanged
from fttui.engine.protocol.states import RunState
from fttui.tui.app import FttuiApp
from fttui.tui.preferences import Preferences
from fttui.tui.screens.incident_page import IncidentPage
from fttui.tui.view_model.connection_port import Link
from tests.support.matrix import in_part
from tests.support.report_scene import spike_report
from tests.support.session_double import (
    FakeSession,
    Script,
    eventful,
    failed,
    finished,
    live_spike,
    loading,
)
from tests.unit.tui.app.driving import frames_undrawn, settled, until
from tests.unit.tui.screens.test_ranks import many_ranks

SMALL, MIDDLE, LARGE = (80, 24), (120, 40), (200, 50)


@pytest.fixture(autouse=True)
def _one_time_zone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def proposed() -> Script:
    return eventful().proposal("lr scale 0.5")


def ranks() -> Script:
    """Four ranks, the last one slow."""
    script = eventful()
    for _ in range(60):
        script.train(1)
        newest = script.records[-1]
        event = msgspec.structs.replace(
            newest.event, rank_s=[4.5, 4.6, 4.5, 4.5 + script.step % 7], skew_s=1.0,
            rank_util=[97.0, 96.0, 97.0, 41.0], rank_temp_c=[68.0, 66.0, 67.0, 88.0],
            rank_power_w=[91.0, 90.0, 92.0, 61.0],
        )  # fmt: skip
        script.records[-1] = msgspec.structs.replace(newest, event=event)
    return script


def chatted() -> Script:
    """A conversation whose second prompt is being answered."""
    script = eventful()
    both = ("base", "adapter")
    script.add(ChatAsked(conversation="c1", prompt="How do I say thanks in Welsh?", answerers=both))
    text = "In Welsh, the phrase for thanks is diolch, and for thank you very much diolch yn fawr."
    script.add(ChatAnswered(answerer="base", text=text, tokens=48, seconds=1.9, ending="limit"))
    script.add(
        ChatAnswered(answerer="adapter", text="Diolch!", tokens=4, seconds=0.2, ending="end")
    )
    script.add(ChatAsked(conversation="c1", prompt="And please?", temperature=0.7, answerers=both))
    script.add(ChatAnswered(answerer="base", text="Please is", tokens=9, seconds=0.4, ending="end"))
    script.add(ChatContinued(answerer="adapter", start=0, text="Os gwel"))
    return script.add(StateChanged(state=RunState.EVALUATING))


def paused() -> Script:
    return eventful().add(StateChanged(state=RunState.PAUSED))


def halted() -> Script:
    script = live_spike()
    script.add(
        AnomalyRaised(
            id="n", kind="nonfinite", severity="alarm", headline="loss is NaN, update skipped",
            actions=["rollback last lr=0.5"], report="001241-nonfinite",
        )
    )  # fmt: skip
    return script.add(StateChanged(state=RunState.HALTED, detail="5 non-finite updates in 100"))


def lost(session: FakeSession) -> None:
    session.engine_alive = False
    session.engine_log_tail = ["Traceback (most recent call last):", "RuntimeError: NCCL aborted"]


def link_lost(session: FakeSession) -> None:
    session.link = Link.LOST


def someone_else(session: FakeSession) -> None:
    session.controller = ("other", "bob@lab")


def unanswered(session: FakeSession) -> None:
    session.answers = False


def reported(session: FakeSession) -> None:
    async def fetch(report: str) -> str:
        return to_markdown(spike_report())

    session.fetch_report = fetch  # type: ignore[method-assign]


def from_disk(session: FakeSession) -> None:
    session.link, session.read_only = Link.ENDED, True


Scene = tuple[Callable[[], Script], tuple[str, ...], Callable[[FakeSession], None] | None]
SCENES: dict[str, Scene] = {
    "live": (eventful, (), None),
    "spike": (live_spike, (), None),
    "starting": (loading, (), None),
    "empty": (Script, (), None),
    "paused": (paused, (), None),
    "chat": (chatted, ("I",), None),
    "halted": (halted, (), None),
    "failed": (failed, (), None),
    "lost": (eventful, (), lost),
    "link-lost": (eventful, (), link_lost),
    "finished": (finished, (), from_disk),
    "proposal": (proposed, (), None),
    "viewer": (eventful, (), someone_else),
    "sent": (eventful, ("e",), unanswered),
    "prompt": (eventful, ("l", *"x0.5"), None),
    "prompt-error": (eventful, ("c", *"-1"), None),
    "confirm-stop": (eventful, ("x",), None),
    "confirm-recover": (live_spike, ("R",), None),
    "rollback": (eventful, ("r", "down"), None),
    "help": (eventful, ("question_mark",), None),
    "anomalies": (live_spike, ("3",), None),
    "report": (live_spike, ("3", "enter"), reported),
    "checkpoints": (eventful, ("4",), None),
    "interventions": (eventful, ("5",), None),
    "samples": (eventful, ("7",), None),
    "log": (failed, ("8",), None),
    "system": (ranks, ("6",), None),
    "ranks": (many_ranks, ("W",), None),
    "time-axis": (eventful, ("X",), None),
    "counting": (eventful, ("semicolon", "1", "2"), None),
    "typed": (eventful, ("colon", *"rollback step-000800-t1", "enter"), None),
    "cursor": (eventful, ("left_square_bracket", "left_square_bracket"), None),
    "zoomed-log": (eventful, ("z", "y", "m"), None),
    "maximised": (eventful, ("down", "down", "enter"), None),
}


def _show(snap_compare, scene: str, size: tuple[int, int], preferences: Preferences | None = None):
    script, keys, tweak = SCENES[scene]
    session = FakeSession(script())
    if tweak is not None:
        tweak(session)
    app = FttuiApp(session, preferences=preferences, clock=lambda: session.script.now + 0.2)

    async def before(pilot) -> None:
        await until(pilot, lambda: settled(app, session))
        for key in keys:
            await pilot.press(key)
            await pilot.pause()
        if scene == "report":
            await until(pilot, lambda: isinstance(app.screen, IncidentPage))
        app.redraw()
        for _ in range(3):
            await pilot.pause()

    with frames_undrawn():
        return snap_compare(app, terminal_size=size, run_before=before)


TIGHT = [
    "live", "spike", "starting", "halted", "failed", "viewer", "prompt", "confirm-stop",
    "rollback", "help", "cursor", "system", "report", "ranks",
]  # fmt: skip
"""Scenes whose look at 80 × 24 is no smaller copy of the one at 120 × 40."""
ALSO_AS_TEXT = {
    "report", "checkpoints", "interventions", "samples", "log", "time-axis", "counting", "typed",
    "confirm-stop", "viewer", "zoomed-log",
    "prompt-error", "sent", "ranks",
}  # fmt: skip
"""Scenes whose words are compared in `test_texts`, at 80 × 24, or by tests of the app."""


@pytest.mark.parametrize("scene", in_part(TIGHT, ["live", "report"]))
def test_at_80_by_24(snap_compare, scene) -> None:
    assert _show(snap_compare, scene, SMALL)


@pytest.mark.parametrize("scene", in_part(SCENES, SCENES.keys() - ALSO_AS_TEXT))
def test_at_120_by_40(snap_compare, scene) -> None:
    assert _show(snap_compare, scene, MIDDLE)


@pytest.mark.parametrize("scene", in_part(["live", "failed", "ranks"], ["failed"]))
def test_at_200_by_50(snap_compare, scene) -> None:
    assert _show(snap_compare, scene, LARGE)


@pytest.mark.parametrize("scene", in_part(["live", "spike", "failed", "rollback"], ["spike"]))
def test_without_colour(snap_compare, monkeypatch, scene) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert _show(snap_compare, scene, MIDDLE)


@pytest.mark.parametrize("scene", in_part(["live", "paused", "prompt", "checkpoints"], ["live"]))
def test_in_ascii(snap_compare, scene) -> None:
    assert _show(snap_compare, scene, SMALL, Preferences(ascii=True))


def test_on_a_light_terminal(snap_compare) -> None:
    assert _show(snap_compare, "spike", MIDDLE, Preferences(theme="fttui-light"))


def test_on_sixteen_colours(snap_compare) -> None:
    assert _show(snap_compare, "spike", MIDDLE, Preferences(theme="fttui-16"))


def test_the_first_time(snap_compare) -> None:
    assert _show(snap_compare, "live", MIDDLE, Preferences(first_time=True))


@pytest.mark.parametrize("size", [(59, 24), pytest.param((80, 15), marks=pytest.mark.long)])
def test_too_small(snap_compare, size) -> None:
    assert _show(snap_compare, "live", size)
