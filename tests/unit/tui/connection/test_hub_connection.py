"""A connection to a hub that is closed under a request."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import zmq.asyncio

from fttui.engine.protocol.codec import encode
from fttui.engine.protocol.requests import AnyHubMessage, ClientMessage, Ping, Pong
from fttui.engine.run.processes.marks import Endpoint
from fttui.tui.connection.hub_connection import HubConnection
from fttui.tui.connection.session.correlator import ConnectionLost, RequestCorrelator


def ping(ref: int) -> ClientMessage:
    return Ping(ref=ref)


class Asking:
    """A request over a connection to a hub that reads requests, or to none."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.connection = HubConnection(Endpoint(pid=1, started=0.0, folder=folder))
        self.correlator = RequestCorrelator()
        self.sender = b""
        self.request: asyncio.Task[AnyHubMessage] = asyncio.create_task(
            self.correlator.ask(ping, self.connection.send, 30.0)
        )

    def take(self, message: AnyHubMessage) -> None:
        self.correlator.match(message)

    def close(self) -> None:
        self.correlator.connection_lost()
        self.connection.close()


@asynccontextmanager
async def asking(*, received: bool) -> AsyncIterator[tuple[Asking, zmq.asyncio.Socket]]:
    """A request that a hub has received, or that waits for a hub to connect to."""
    context = zmq.asyncio.Context()
    with tempfile.TemporaryDirectory(prefix="ft-", dir="/tmp") as folder:
        asked = Asking(folder)
        await asyncio.sleep(0)
        hub = context.socket(zmq.ROUTER)
        if received:
            hub.bind(f"ipc://{folder}/req")
            asked.sender = (await hub.recv_multipart())[0]
        yield asked, hub
        context.destroy(linger=0)


@pytest.mark.parametrize("received", [True, False])
async def test_a_request_over_a_closed_connection_fails_and_is_not_cancelled(
    received: bool,
) -> None:
    async with asking(received=received) as (asked, _):
        asked.close()
        done, _ = await asyncio.wait([asked.request], timeout=10)
        assert done
        assert not asked.request.cancelled()
        assert isinstance(asked.request.exception(), ConnectionLost)


async def test_a_request_can_be_cancelled() -> None:
    async with asking(received=True) as (asked, _):
        asked.request.cancel()
        await asyncio.wait([asked.request], timeout=10)
        assert asked.request.cancelled()
        asked.close()


async def test_a_request_that_was_given_up_is_never_sent() -> None:
    async with asking(received=False) as (asked, hub):
        asked.request.cancel()
        await asyncio.wait([asked.request], timeout=10)
        hub.bind(f"ipc://{asked.folder}/req")
        later = asyncio.create_task(asked.correlator.ask(ping, asked.connection.send, 30.0))
        _, data = await asyncio.wait_for(hub.recv_multipart(), 10)
        assert data == encode(Ping(ref=2))
        later.cancel()
        asked.close()


async def test_replies_are_handed_on_and_what_cannot_be_decoded_is_skipped() -> None:
    async with asking(received=True) as (asked, hub):
        listening = asyncio.create_task(asked.connection.listen(asked.take))
        await hub.send_multipart([asked.sender, b"no message"])
        await hub.send_multipart([asked.sender, encode(Pong(ref=1))])
        assert await asyncio.wait_for(asked.request, 10) == Pong(ref=1)
        listening.cancel()
        asked.close()
