"""Finding a hub, and one connection to it: sockets, request numbers, waiting for replies."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

import zmq
import zmq.asyncio

from fttui.engine.hub.launch import ensure_hub
from fttui.engine.protocol.codec import DecodeError, decode_hub, encode
from fttui.engine.protocol.requests import AnyHubMessage, ClientMessage
from fttui.engine.run.process_marks import Endpoint, read_endpoint, read_engine
from fttui.engine.run.run_dir import RunDirectory

HUB_STARTS_IN_S = 10.0
MAX_BATCH = 2_000
_EVENTS_QUEUED = 20_000


async def reach_hub(run: RunDirectory) -> Endpoint | None:
    """A living hub, started if need be; None when the engine is gone as well.

    Raises:
        FttuiError: it does not come up in time.
    """
    endpoint = read_endpoint(run)
    if endpoint is not None and endpoint.alive:
        return endpoint
    engine = read_engine(run)
    if engine is None or not engine.alive:
        return None
    return await asyncio.to_thread(ensure_hub, run, HUB_STARTS_IN_S)


class HubConnection:
    """Talks to a hub; made for one endpoint and thrown away when that is gone."""

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
        self._refs = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[AnyHubMessage]] = {}
        self._closed = False

    def _open(self, kind: int) -> zmq.asyncio.Socket:
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.HANDSHAKE_IVL, 1000)
        return socket

    def next_ref(self) -> int:
        """A request number not used on this line before."""
        return next(self._refs)

    async def ask(self, message: ClientMessage, timeout_s: float) -> AnyHubMessage:
        """Send a request and wait for the reply to it; `listen` must be running.

        Raises:
            TimeoutError: nothing came in time, or the line was closed meanwhile.
        """
        reply: asyncio.Future[AnyHubMessage] = asyncio.get_running_loop().create_future()
        self._waiting[message.ref] = reply
        try:
            async with asyncio.timeout(timeout_s):
                await self._requests.send(encode(message))
                return await reply
        except asyncio.CancelledError:
            # A closed socket cancels what waits on it; whoever asked was not cancelled by anybody.
            task = asyncio.current_task()
            if self._closed and task is not None and not task.cancelling():
                raise TimeoutError("the connection was closed") from None
            raise
        finally:
            del self._waiting[message.ref]

    def post(self, message: ClientMessage) -> None:
        """Send without waiting; lost when the hub cannot take it now."""
        sent = asyncio.ensure_future(self._requests.send(encode(message), zmq.DONTWAIT))
        sent.add_done_callback(lambda future: future.cancelled() or future.exception())

    async def listen(self, on_reply: Callable[[AnyHubMessage], None]) -> None:
        """Take replies in for ever; those nobody waits for go to `on_reply`."""
        while True:
            data = await self._requests.recv()
            try:
                message = decode_hub(data)
            except DecodeError:
                continue
            waiting = self._waiting.get(message.ref)
            if waiting is None:
                on_reply(message)
            elif not waiting.done():
                waiting.set_result(message)

    async def events(self) -> list[list[bytes]]:
        """The next messages of the event stream, all that are there up to a limit."""
        batch = [await self._events.recv_multipart()]
        while len(batch) < MAX_BATCH:
            try:
                batch.append(await self._events.recv_multipart(zmq.DONTWAIT))
            except zmq.Again:
                break
        return batch

    def close(self) -> None:
        """Leave at once."""
        self._closed = True
        for reply in self._waiting.values():
            reply.cancel()
        self._context.destroy(linger=0)
