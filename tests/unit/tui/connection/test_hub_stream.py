"""What a stream does beside reading: pings, and commands that are sent again."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

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
