"""Requests that wait for their reply, told apart by number."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

from fttui.engine.errors import EngineGone
from fttui.engine.protocol.requests import AnyHubMessage, ClientMessage


class RequestCorrelator:
    """What was asked over one connection after another, and not answered yet."""

    def __init__(self) -> None:
        self._refs = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[AnyHubMessage]] = {}
        self._asked: dict[int, ClientMessage] = {}

    def next_ref(self) -> int:
        """A request number not used before."""
        return next(self._refs)

    async def ask(
        self,
        make: Callable[[int], ClientMessage],
        send: Callable[[ClientMessage], None],
        timeout_s: float,
    ) -> AnyHubMessage:
        """Send a request and wait for the reply to it.

        Raises:
            EngineGone: none came in time, or the connection was cut.
        """
        message = make(self.next_ref())
        reply: asyncio.Future[AnyHubMessage] = asyncio.get_running_loop().create_future()
        self._waiting[message.ref], self._asked[message.ref] = reply, message
        send(message)
        try:
            await asyncio.wait([reply], timeout=timeout_s)
        finally:
            del self._waiting[message.ref], self._asked[message.ref]
        if reply.cancelled():
            raise EngineGone("the connection was cut before the answer")
        if not reply.done():
            raise EngineGone(f"the run did not answer within {timeout_s:g} s")
        return reply.result()

    def answered(self, reply: AnyHubMessage) -> None:
        """Hand a reply to who waits for it, if anybody does."""
        waiting = self._waiting.get(reply.ref)
        if waiting is not None and not waiting.done():
            waiting.set_result(reply)

    def repeat(self, send: Callable[[ClientMessage], None]) -> None:
        """Ask again what is not answered: who was asked first may have died over it."""
        for message in self._asked.values():
            send(message)

    def give_up(self) -> None:
        """The connection is cut: nobody waits any longer."""
        for waiting in self._waiting.values():
            waiting.cancel()
