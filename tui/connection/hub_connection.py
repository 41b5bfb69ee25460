"""Find or start the hub of a run, and open the sockets of one connection to it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import zmq
import zmq.asyncio

from fttui.engine.hub.launch import POLL_S, HubStart
from fttui.engine.protocol.codec import DecodeError, decode_hub, encode
from fttui.engine.protocol.requests import AnyHubMessage, ClientMessage
from fttui.engine.run.processes.marks import Endpoint, read_endpoint, read_engine
from fttui.engine.run.processes.ownership import require_own_hub, require_own_process
from fttui.engine.run.run_dir import RunDirectory

HUB_STARTS_IN_S = 10.0
MAX_BATCH = 2_000
_EVENTS_QUEUED = 20_000


async def reach_hub(run: RunDirectory) -> Endpoint | None:
    """Return the endpoint of the run's hub; None if neither engine nor hub runs.

    If only the engine runs, a hub is started.

    Raises:
        NotOwner: hub or engine belong to another user; nothing was sent to them.
        FttuiError: the hub did not start within `HUB_STARTS_IN_S`.
        OSError: the sockets of the hub are gone.
    """
    endpoint = read_endpoint(run)
    if endpoint is not None and endpoint.alive:
        require_own_hub(endpoint)
        return endpoint
    engine = read_engine(run)
    if engine is None or not engine.alive:
        return None
    require_own_process(engine, "the engine")
    # Not in a thread: one could not be cancelled, and would outlast the timeout of a command.
    start = HubStart(run, HUB_STARTS_IN_S)
    while (endpoint := start.look()) is None:
        await asyncio.sleep(POLL_S)
    require_own_hub(endpoint)
    return endpoint


class HubConnection:
    """The sockets to one hub process: a subscription to its events, and one for requests."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._context = zmq.asyncio.Context()
        self._events = self._open(zmq.SUB)
        self._events.setsockopt(zmq.RCVHWM, _EVENTS_QUEUED)
        self._events.setsockopt(zmq.SUBSCRIBE, b"")
        self._events.connect(endpoint.events)
        self._requests = self._open(zmq.DEALER)
        self._requests.setsockopt(zmq.IMMEDIATE, 1)
        self._requests.connect(endpoint.requests)

    def _open(self, kind: int) -> zmq.asyncio.Socket:
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.HANDSHAKE_IVL, 1000)
        return socket

    def send(self, message: ClientMessage) -> asyncio.Future[Any]:
        """Send as soon as the hub can take the message; to give up, cancel the returned future."""
        return _watched(self._requests.send(encode(message)))

    def post(self, message: ClientMessage) -> None:
        """Send now; the message is lost if the hub cannot take it now."""
        _watched(self._requests.send(encode(message), zmq.DONTWAIT))

    async def listen(self, on_message: Callable[[AnyHubMessage], None]) -> None:
        """Hand every message of the hub to `on_message`, until cancelled; skip undecodable ones."""
        while True:
            data = await self._requests.recv()
            with suppress(DecodeError):
                on_message(decode_hub(data))

    async def events(self) -> list[list[bytes]]:
        """Wait for a published message; return all that have arrived, at most `MAX_BATCH`.

        Each message is the list of its frames: the topic, then the content.
        """
        batch = [await self._events.recv_multipart()]
        while len(batch) < MAX_BATCH:
            try:
                batch.append(await self._events.recv_multipart(zmq.DONTWAIT))
            except zmq.Again:
                break
        return batch

    def close(self) -> None:
        """Close both sockets at once; what is still being sent or received is cancelled."""
        self._context.destroy(linger=0)


def _watched(sending: Awaitable[Any]) -> asyncio.Future[Any]:
    """Return the sending as a future that causes no warning if nobody reads its failure."""
    future = asyncio.ensure_future(sending)
    future.add_done_callback(lambda done: done.cancelled() or done.exception())
    return future
