"""A line that is closed under somebody who waits on it."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import zmq.asyncio

from fttui.engine.protocol.requests import AnyHubMessage, Ping
from fttui.engine.run.process_marks import Endpoint
from fttui.tui.connection.hub_connection import HubConnection


@asynccontextmanager
async def asking(
    *, heard: bool
) -> AsyncIterator[tuple[HubConnection, asyncio.Task[AnyHubMessage]]]:
    """A question that a hub has heard and never answers, or that no hub is there to hear."""
    context = zmq.asyncio.Context()
    with tempfile.TemporaryDirectory(prefix="ft-", dir="/tmp") as folder:
        line = HubConnection(Endpoint(pid=1, started=0.0, folder=folder))
        asked = asyncio.create_task(line.ask(Ping(ref=line.next_ref()), 30.0))
        await asyncio.sleep(0)
        if heard:
            hub = context.socket(zmq.ROUTER)
            hub.bind(f"ipc://{folder}/req")
            await hub.recv_multipart()
        yield line, asked
        context.destroy(linger=0)


@pytest.mark.parametrize("heard", [True, False])
async def test_who_asked_over_a_closed_line_is_told_and_not_cancelled(heard: bool) -> None:
    async with asking(heard=heard) as (line, asked):
        line.close()
        done, _ = await asyncio.wait([asked], timeout=10)
        assert done
        assert not asked.cancelled()
        assert isinstance(asked.exception(), TimeoutError)


async def test_a_question_can_be_cancelled() -> None:
    async with asking(heard=True) as (line, asked):
        asked.cancel()
        await asyncio.wait([asked], timeout=10)
        assert asked.cancelled()
        line.close()
