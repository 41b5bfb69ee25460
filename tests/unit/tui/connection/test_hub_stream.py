"""What a stream does beside reading: pings, and commands that are sent again."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from fttui.engine.errors import ProtocolMismatch
from fttui.engine.protocol.requests import Welcome
from fttui.tui.connection.hub_stream import PING_S, HubStream
from fttui.tui.view_model.connection_port import Link


@pytest.mark.parametrize("greeted", [True, False])
async def test_after_the_greeting_commands_without_an_answer_are_sent_again(greeted: bool) -> None:
    done: list[Any] = []
    session = SimpleNamespace(
        feed=SimpleNamespace(set_link=done.append),
        correlator=SimpleNamespace(next_ref=lambda: 7),
        send_commands=lambda *, unanswered_s: done.append(unanswered_s),
    )
    stream: Any = SimpleNamespace(
        greeted=greeted,
        _require_hub=lambda: None,
        _silence=SimpleNamespace(stale=False),
        _session=session,
        _monotonic=lambda: 100.0,
        _closed=asyncio.Event(),
        send=lambda message: done.append(message.ref),
    )
    watching = asyncio.create_task(HubStream._supervise(stream))
    await asyncio.sleep(0)
    watching.cancel()
    assert done == ([Link.LIVE, 7, PING_S] if greeted else [])


@pytest.mark.parametrize(("agent", "leaves"), [("propose", True), ("act", True), (None, False)])
async def test_an_agent_leaves_a_hub_that_knows_no_limits(agent: str | None, leaves: bool) -> None:
    session = SimpleNamespace(
        agent=agent, viewer="v", issuer="i", read_only=False, one_shot=False,
        feed=SimpleNamespace(set_link=lambda link: None), on_welcome=lambda reply: None,
    )  # fmt: skip
    older = Welcome(ref=1, version=(1, 0), run="r", incarnation=1, last_seq=0)

    async def answer(make: Any) -> Welcome:
        return older

    stream: Any = SimpleNamespace(_session=session, _ask=answer, greeted=False)
    if not leaves:
        await HubStream._greet(stream)
        assert stream.greeted
        return
    with pytest.raises(ProtocolMismatch, match="no limits for agents"):
        await HubStream._greet(stream)
    assert not stream.greeted
