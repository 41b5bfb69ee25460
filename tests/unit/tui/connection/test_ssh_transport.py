"""Reconnecting over ssh: where it continues, how often it is tried, and when it is given up."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from fttui.engine.errors import ProtocolMismatch
from fttui.engine.protocol.codec import decode_client, encode
from fttui.engine.protocol.commands import Pause
from fttui.engine.protocol.events import LogEmitted, Record
from fttui.engine.protocol.record_blocks import pack_block
from fttui.engine.protocol.requests import Accepted, SubmitCommand
from fttui.engine.protocol.ssh_protocol import (
    Failed,
    FrameKind,
    JournalPosition,
    Open,
    Opened,
    Pulse,
    Records,
)
from fttui.engine.protocol.states import RunState
from fttui.tui.connection.remote import SshTransport
from fttui.tui.connection.session.session_base import EXPIRES_S, SessionBase
from fttui.tui.connection.ssh.remote_host import LoginRefused, RemoteHost, Unreachable
from fttui.tui.connection.ssh.ssh_connection import RemoteFailed, SshConnection
from fttui.tui.view_model.connection_port import (
    CommandAnswered,
    Delivery,
    Link,
    LinkChanged,
    RecordsArrived,
)
from tests.support.waiting import eventually

Frame = tuple[int, bytes]
CLOCK_S = 1_000.0


class FakeConnection:
    """A bridge from a script: its frames, then an error, or silence if there is none."""

    host = "box"
    received_bytes = 0
    reading = SshConnection.reading

    def __init__(
        self, *frames: Frame, then: Exception | None = None, opened: dict[str, Any] | None = None
    ) -> None:
        self.frames = list(frames)
        self.then = then
        self.opened = opened or {}
        self.asked: list[Open] = []
        self.sent: list[Frame] = []
        self.closed = 0

    def attach(self) -> None:
        """No event loop is needed."""

    async def open(self, asked: Open) -> Opened:
        self.asked.append(asked)
        after = asked.seen.seq if asked.seen else 0
        known = {"from_seq": after, "last_seq": after, "engine_alive": True, "time": CLOCK_S}
        state = RunState.RUNNING
        return Opened(run="run", incarnation=1, timeline=1, state=state, **(known | self.opened))

    async def next(self) -> Frame:
        if self.frames:
            return self.frames.pop(0)
        if self.then is not None:
            raise self.then
        await asyncio.Event().wait()
        raise AssertionError

    def send(self, kind: int, payload: bytes) -> None:
        self.sent.append((kind, payload))

    def acknowledge(self, total_bytes: int) -> None:
        """Flow control is the bridge's."""

    async def close(self) -> None:
        self.closed += 1

    def commands(self) -> list[str]:
        messages = [decode_client(payload) for _, payload in self.sent]
        return [message.id for message in messages if isinstance(message, SubmitCommand)]


class Attached:
    """A session over scripted connections, one after another; the last of them is held."""

    def __init__(self, *connections: FakeConnection | Exception, one_shot: bool = False) -> None:
        self.connections = list(connections)
        self.shared: list[bool] = []
        self.transport = SshTransport(
            RemoteHost("box"),
            connect=self.connect,
            chance=lambda: 0.0,
            clock=lambda: CLOCK_S,
        )
        self.session = SessionBase(
            self.transport, run_id="", one_shot=one_shot, clock=lambda: CLOCK_S
        )
        self.delivered: list[Delivery] = []
        self.task = asyncio.create_task(self.session.listen(self.delivered.append))

    def connect(self, host: RemoteHost, *, may_prompt: bool, shared: bool) -> Any:
        assert not may_prompt, "nobody is asked while the app has the screen"
        self.shared.append(shared)
        connection = self.connections.pop(0)
        if isinstance(connection, Exception):
            raise connection
        return connection

    def seqs(self) -> list[int]:
        arrived = [d for d in self.delivered if isinstance(d, RecordsArrived)]
        return [record.seq for batch in arrived for record in batch.records]

    def links(self) -> list[Link]:
        return [d.link for d in self.delivered if isinstance(d, LinkChanged)]

    async def until(self, condition: Callable[[], object]) -> None:
        await eventually(lambda: condition() or self.task.done())
        if self.task.done():
            self.task.result()
        assert condition()

    async def end(self) -> None:
        self.session.read_only = True  # so that it does not wait for a reply about control
        await self.session.close()
        await asyncio.wait_for(self.task, 10)


def payload(seq: int) -> bytes:
    event = LogEmitted(level="info", text="x")
    return encode(Record(seq=seq, time=0.0, step=0, timeline=1, event=event))


def records(*seqs: int, offset: int = 0) -> Frame:
    block = pack_block([payload(seq) for seq in seqs])
    message = Records(block=block, head_seq=seqs[-1], offset=offset)
    return FrameKind.TALK, encode(message)


def pulse(*, served: bool, head_seq: int, time: float = CLOCK_S) -> Frame:
    message = Pulse(time=time, head_seq=head_seq, served=served, engine_alive=False)
    return FrameKind.TALK, encode(message)


async def test_a_new_connection_continues_after_the_newest_record() -> None:
    first = FakeConnection(records(1, 2, offset=77), then=Unreachable("cut"))
    second = FakeConnection(records(3))
    attached = Attached(first, second)
    await attached.until(lambda: len(attached.seqs()) == 3)
    assert first.asked[0].seen is None
    assert second.asked[0].run == "run"
    seen = JournalPosition(seq=2, crc=zlib.crc32(payload(2)), offset=77)
    assert second.asked[0].seen == seen
    assert attached.seqs() == [1, 2, 3]
    assert attached.links() == [Link.CONNECTING, Link.LIVE, Link.LOST, Link.LIVE]
    assert first.closed == 1
    await attached.end()
    assert second.closed == 1


async def test_a_connection_of_the_control_master_is_not_used_after_two_failures() -> None:
    cut = Unreachable("cut")
    attached = Attached(cut, cut, cut, FakeConnection())
    await attached.until(lambda: Link.LIVE in attached.links())
    assert attached.shared == [True, True, False, False]
    await attached.end()


@pytest.mark.parametrize(
    "final",
    [
        LoginRefused("box refused the login"),
        FakeConnection((FrameKind.TALK, encode(Failed(code=3, reason="no such run")))),
        FakeConnection((FrameKind.HUB, b"\xc1")),
    ],
)
async def test_what_trying_again_cannot_mend_ends_the_session(
    final: FakeConnection | Exception,
) -> None:
    attached = Attached(FakeConnection(then=Unreachable("cut")), final)
    with pytest.raises((LoginRefused, RemoteFailed, ProtocolMismatch)):
        await asyncio.wait_for(attached.task, 10)
    assert len(attached.shared) == 2
    assert attached.connections == []


async def test_commands_without_an_answer_are_sent_over_the_next_connection() -> None:
    lost = asyncio.Event()

    class Cut(FakeConnection):
        async def next(self) -> Frame:
            await lost.wait()
            raise Unreachable("cut")

    first, second = Cut(), FakeConnection()
    attached = Attached(first, second)
    await attached.until(lambda: Link.LIVE in attached.links())
    id_ = attached.session.submit(Pause())
    assert first.commands() == [id_]
    lost.set()
    await attached.until(lambda: second.commands() == [id_])
    attached.session.on_reply(Accepted(ref=0, id=id_))
    assert CommandAnswered(id=id_, accepted=True) in attached.delivered
    await attached.end()


async def test_a_run_has_ended_when_nothing_serves_it_and_all_was_delivered() -> None:
    attached = Attached(
        FakeConnection(
            pulse(served=False, head_seq=2), records(1, 2), pulse(served=False, head_seq=2)
        )
    )
    await attached.until(lambda: Link.ENDED in attached.links())
    assert attached.links() == [Link.CONNECTING, Link.LIVE, Link.ENDED]
    assert attached.seqs() == [1, 2]
    await attached.end()


async def test_the_largest_clock_offset_counts() -> None:
    late = pulse(served=True, head_seq=0, time=CLOCK_S + 20.0)
    exact = pulse(served=True, head_seq=0, time=CLOCK_S + 25.0)
    attached = Attached(FakeConnection(exact, late, records(1), opened={"time": CLOCK_S + 10.0}))
    await attached.until(lambda: attached.seqs())
    assert attached.transport.clock_offset_s == 25.0
    assert EXPIRES_S == 30.0
    await attached.end()


async def test_a_script_gets_the_records_from_its_first_connection_on() -> None:
    first = FakeConnection(
        records(8, 9), then=Unreachable("cut"), opened={"from_seq": 7, "last_seq": 7}
    )
    second = FakeConnection(records(10))
    attached = Attached(first, second, one_shot=True)
    await attached.until(lambda: len(attached.seqs()) == 3)
    assert [first.asked[0].one_shot, second.asked[0].one_shot] == [True, False]
    assert attached.seqs() == [8, 9, 10]
    await attached.end()


async def test_the_bridge_decides_whether_the_session_is_read_only() -> None:
    attached = Attached(FakeConnection(opened={"why_read_only": "a forced command"}))
    await attached.until(lambda: Link.LIVE in attached.links())
    assert attached.session.read_only
    assert attached.session.run_id == "run"
    await attached.end()
