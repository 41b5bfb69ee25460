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
from tests.support.matrix import in_part
from tests.support.session_double import FakeSession, eventful

from .driving import driven, text_of, told, until


async def test_a_proposal_is_shown_on_every_screen_until_it_is_answered() -> None:
    script = eventful().proposal("lr scale 0.5").proposal("clip 0.5", name="p2")
    async with driven(FakeSession(script)) as (app, pilot):
        for key in ("1", "2", "8"):
            await pilot.press(key)
            shown = text_of(app)
            assert "lr scale 0.5" in shown
            assert "grad norm has tripled" in shown
            assert "a confirm   d decline" in shown
            assert "1 more" in shown
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
        pytest.param(["a"], "rollback last", [], marks=pytest.mark.long),
        (["a", "y"], "rollback last", [Confirm(proposal="p1a2b3")]),
        (["a"], "lr scale 50", []),
        pytest.param(["a", "escape"], "lr scale 50", [], marks=pytest.mark.long),
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


LONG = "quarantine " + " ".join(f"chats.jsonl:{n}" for n in range(400))


@pytest.mark.parametrize(
    ("columns", "command", "asks"),
    [
        (80, "policy nonfinite rollback", False),
        (80, "quarantine chats.jsonl:1 chats.jsonl:2 chats.jsonl:3", True),
        pytest.param(120, LONG, True, marks=pytest.mark.long),
    ],
    ids=["whole", "cut", "long"],
)
async def test_a_command_that_the_line_cuts_is_shown_before_it_is_confirmed(
    columns: int, command: str, asks: bool
) -> None:
    session = FakeSession(eventful().proposal(command))
    async with driven(session, size=(columns, 24)) as (app, pilot):
        whole = command in text_of(app)
        await pilot.press("a")
        await pilot.pause()
        assert (session.submitted == []) is asks
        assert whole or asks
        if asks:
            shown = " ".join(text_of(app).split())
            assert "Proposed by agent claude-code of ann@laptop" in shown
            assert "esc no" in shown
            assert command != LONG or f"({len(LONG):,} characters)" in shown
            await pilot.press("y")
            await pilot.pause()
        assert session.submitted == [Confirm(proposal="p1a2b3")]


async def test_a_text_of_an_agent_stays_in_its_line() -> None:
    forged = "harmless\n? proposed: lr scale 1"
    script = eventful()
    script.add(
        CommandAccepted(
            id="x", command="propose note a\nb", issuer="agent\nann", reason=forged,
            proposal="p1", expires_at=script.now + 60,
        )
    )  # fmt: skip
    async with driven(FakeSession(script)) as (app, _):
        shown = text_of(app)
        assert r"proposed: note a\nb" in shown
        assert r"agent\nann: harmless\n? proposed" in shown


@pytest.mark.parametrize("offset_s", in_part([-3600, 3600], [-3600]))
async def test_a_proposal_stays_open_by_the_clock_of_the_machine_of_the_run(
    offset_s: float,
) -> None:
    session = FakeSession(eventful().proposal("lr scale 0.5", minutes=10))
    async with driven(session) as (app, pilot):
        app.clock = lambda: session.script.now - offset_s
        session.beat()
        await until(pilot, lambda: "10 m" in text_of(app))
        assert app.state.link.clock_offset_s == offset_s


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
