"""Number requests, and hand each reply to the request that waits for it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fttui.engine.errors import EngineGone
from fttui.engine.protocol.requests import AnyHubMessage, ClientMessage

Send = Callable[[ClientMessage], "asyncio.Future[Any] | None"]
"""Starts to send a message; the future, if any, is done once the message has been sent."""


class ConnectionLost(EngineGone):
    """The connection was lost before the reply to a request arrived."""


@dataclass(frozen=True)
class _OpenRequest:
    message: ClientMessage
    reply: asyncio.Future[AnyHubMessage]


class RequestCorrelator:
    """Numbers the requests of one session and hands each reply to the request it belongs to.

    Numbers are never reused, so a late reply cannot be taken for the reply to a newer request, even
    over another connection.
    """

    def __init__(self) -> None:
        self._refs = itertools.count(1)
        self._open: dict[int, _OpenRequest] = {}

    def next_ref(self) -> int:
        """Return a request number that was not used before."""
        return next(self._refs)

    async def ask(
        self, make: Callable[[int], ClientMessage], send: Send, timeout_s: float
    ) -> AnyHubMessage:
        """Send the request that `make` returns for a number, and return its reply.

        Raises:
            TimeoutError: no reply arrived within `timeout_s`, which includes the sending.
            ConnectionLost: `connection_lost` was called before the reply arrived.
        """
        message = make(self.next_ref())
        reply: asyncio.Future[AnyHubMessage] = asyncio.get_running_loop().create_future()
        self._open[message.ref] = _OpenRequest(message, reply)
        sending = None
        try:
            sending = send(message)
            await asyncio.wait([reply], timeout=timeout_s)
        finally:
            del self._open[message.ref]
            if sending is not None:
                sending.cancel()  # a request that nobody waits for must not take effect later
        if reply.cancelled():
            raise ConnectionLost("the connection was lost before the reply; it is being restored")
        if not reply.done():
            raise TimeoutError(f"no reply within {timeout_s:g} s")
        return reply.result()

    def match(self, reply: AnyHubMessage) -> bool:
        """Hand a reply to the request that waits for it; return False if none does."""
        request = self._open.get(reply.ref)
        if request is None:
            return False
        if not request.reply.done():
            request.reply.set_result(reply)
        return True

    def repeat(self, send: Send) -> None:
        """Send all open requests again, because the hub that received them may have died."""
        for request in self._open.values():
            send(request.message)

    def connection_lost(self) -> None:
        """End the wait of all open requests with `ConnectionLost`."""
        for request in self._open.values():
            request.reply.cancel()
