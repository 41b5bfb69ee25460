"""Replies and the requests they belong to: late, lost, repeated, too slow."""

from __future__ import annotations

import asyncio

import pytest

from fttui.engine.errors import EngineGone
from fttui.engine.protocol.requests import AnyHubMessage, ClientMessage, Ping, Pong
from fttui.tui.connection.session.correlator import ConnectionLost, RequestCorrelator


class Asked:
    """A correlator, what was sent through it, and one open request."""

    def __init__(self, timeout_s: float = 30.0) -> None:
        self.correlator = RequestCorrelator()
        self.sent: list[ClientMessage] = []
        self.reply = self.ask(timeout_s)

    def ask(self, timeout_s: float = 30.0) -> asyncio.Task[AnyHubMessage]:
        return asyncio.create_task(self.correlator.ask(ping, self.sent.append, timeout_s))


def ping(ref: int) -> ClientMessage:
    return Ping(ref=ref)


async def test_each_reply_goes_to_its_request_in_any_order() -> None:
    asked = Asked()
    second = asked.ask()
    await asyncio.sleep(0)
    assert asked.sent == [Ping(ref=1), Ping(ref=2)]
    assert asked.correlator.match(Pong(ref=2))
    assert await second == Pong(ref=2)
    assert not asked.reply.done()
    assert asked.correlator.match(Pong(ref=1))
    assert await asked.reply == Pong(ref=1)


async def test_a_reply_that_comes_while_the_request_is_sent_is_not_missed() -> None:
    correlator = RequestCorrelator()

    def answer_at_once(message: ClientMessage) -> None:
        assert correlator.match(Pong(ref=message.ref))

    assert await correlator.ask(ping, answer_at_once, 30.0) == Pong(ref=1)


async def test_numbers_are_never_reused() -> None:
    asked = Asked()
    await asyncio.sleep(0)
    asked.correlator.connection_lost()
    await asyncio.wait([asked.reply])
    assert asked.correlator.next_ref() == 2
    again = asked.ask()
    await asyncio.sleep(0)
    assert asked.sent[-1] == Ping(ref=3)
    again.cancel()


async def test_a_late_reply_belongs_to_nothing() -> None:
    asked = Asked(timeout_s=0.0)
    with pytest.raises(TimeoutError, match="no reply within 0 s"):
        await asked.reply
    newer = asked.ask()
    await asyncio.sleep(0)
    assert not asked.correlator.match(Pong(ref=1))
    assert not newer.done()
    newer.cancel()


async def test_a_reply_is_taken_once() -> None:
    asked = Asked()
    await asyncio.sleep(0)
    assert asked.correlator.match(Pong(ref=1))
    assert asked.correlator.match(Pong(ref=1)), "still known, and ignored"
    assert await asked.reply == Pong(ref=1)
    assert not asked.correlator.match(Pong(ref=1))


async def test_a_lost_connection_ends_every_wait_with_an_error_of_its_own() -> None:
    asked = Asked()
    second = asked.ask()
    await asyncio.sleep(0)
    asked.correlator.connection_lost()
    for reply in (asked.reply, second):
        with pytest.raises(ConnectionLost, match="being restored"):
            await reply
    assert issubclass(ConnectionLost, EngineGone)
    assert not asked.correlator.match(Pong(ref=1))


async def test_a_request_that_is_answered_survives_the_loss_of_the_connection() -> None:
    asked = Asked()
    await asyncio.sleep(0)
    asked.correlator.match(Pong(ref=1))
    asked.correlator.connection_lost()
    assert await asked.reply == Pong(ref=1)


async def test_only_open_requests_are_repeated() -> None:
    asked = Asked()
    second = asked.ask()
    await asyncio.sleep(0)
    asked.correlator.match(Pong(ref=1))
    await asked.reply
    repeated: list[ClientMessage] = []
    asked.correlator.repeat(repeated.append)
    assert repeated == [Ping(ref=2)]
    second.cancel()
    await asyncio.wait([second])
    asked.correlator.repeat(repeated.append)
    assert repeated == [Ping(ref=2)], "the cancelled one is not"


async def test_a_send_that_is_still_under_way_is_given_up_with_the_request() -> None:
    correlator = RequestCorrelator()
    sending: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    with pytest.raises(TimeoutError):
        await correlator.ask(ping, lambda _: sending, 0.0)
    assert sending.cancelled()


async def test_a_send_that_fails_leaves_no_request_open() -> None:
    correlator = RequestCorrelator()

    def fail(_: ClientMessage) -> None:
        raise OSError("closed")

    with pytest.raises(OSError, match="closed"):
        await correlator.ask(ping, fail, 30.0)
    repeated: list[ClientMessage] = []
    correlator.repeat(repeated.append)
    assert repeated == []
