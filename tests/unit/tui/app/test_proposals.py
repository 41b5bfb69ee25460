"""A proposal in the app: its lines on every screen, and the keys that answer it."""

from __future__ import annotations

import pytest

from fttui.engine.protocol.commands import (
    AnyCommand,
    Confirm,
    Decline,
    Propose,
    describe_command,
)
from fttui.engine.protocol.events import CommandAccepted
from tests.support.session_double import FakeSession, eventful

from .driving import driven, text_of, told


async def test_a_proposal_is_shown_on_every_screen_until_it_is_answered() -> None:
    script = eventful().proposal("lr scale 0.5").proposal("clip 0.5", name="p2")
    async with driven(FakeSession(script)) as (app, pilot):
        for key in ("1", "2", "8"):
            await pilot.press(key)
            shown = text_of(app)
            assert "lr scale 0.5" in shown
            assert "grad norm has tripled" in shown
            assert "a confirm   d decline   1 more" in shown
            assert " left" in shown
    script.add(CommandAccepted(id="x", command="lr scale 0.5", issuer="ann", proposal="p1a2b3"))
    async with driven(FakeSession(script)) as (app, _):
        assert "clip 0.5" in text_of(app)
        assert "1 more" not in text_of(app)


@pytest.mark.parametrize(
    ("keys", "command", "sent"),
    [
        (["a"], "lr scale 0.5", [Confirm(proposal="p1a2b3")]),
        (["d"], "lr scale 0.5", [Decline(proposal="p1a2b3")]),
        (["a"], "rollback last", []),
        (["a", "y"], "rollback last", [Confirm(proposal="p1a2b3")]),
        (["a"], "lr scale 50", []),
        (["a", "escape"], "lr scale 50", []),
    ],
)
async def test_one_key_answers_what_can_be_undone(
    keys: list[str], command: str, sent: list[AnyCommand]
) -> None:
    session = FakeSession(eventful().proposal(command))
    async with driven(session) as (_, pilot):
        await pilot.press(*keys)
        await pilot.pause()
        assert session.submitted == sent


async def test_an_expired_proposal_is_gone_and_its_key_says_so() -> None:
    session = FakeSession(eventful().proposal("lr scale 0.5", minutes=0.001))
    async with driven(session) as (app, pilot):
        assert "proposed:" not in text_of(app)
        await pilot.press("a")
        assert "expired" in told(app)
        assert session.submitted == []


async def test_without_a_proposal_the_keys_say_so() -> None:
    session = FakeSession(eventful())
    async with driven(session) as (app, pilot):
        await pilot.press("a")
        assert "no open proposal" in told(app)


async def test_a_person_without_control_can_propose() -> None:
    session = FakeSession(eventful())
    session.controller = ("other", "bob@lab")
    async with driven(session) as (_, pilot):
        await pilot.press("A", *"clip 0.5", "enter")
        await pilot.pause()
        (made,) = session.submitted
        assert isinstance(made, Propose)
        assert describe_command(made) == "propose clip 0.5"
