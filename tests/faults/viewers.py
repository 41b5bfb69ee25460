"""Viewers for faults: the app's own session, and a bare socket that can be mistreated."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

import zmq

from fttui.engine.protocol.codec import decode_hub, encode
from fttui.engine.protocol.commands import parse_command
from fttui.engine.protocol.events import Record
from fttui.engine.protocol.requests import Accepted, Beat, Rejected, SubmitCommand
from fttui.engine.run.processes.marks import Endpoint, read_endpoint
from fttui.engine.run.run_dir import RunDirectory
from fttui.tui.connection.local import LocalSession
from fttui.tui.view_model.connection_port import (
    BeatArrived,
    Delivery,
    Link,
    LinkChanged,
    RecordsArrived,
)
from tests.support.waiting import until

from .invariants import marks


class Viewer:
    """The app's session and what it delivered, with times."""

    def __init__(self, run: RunDirectory) -> None:
        self.session = LocalSession(run)
        self.seen: list[Record] = []
        self.link: Link | None = None
        self.beat: Beat | None = None
        self.task = asyncio.create_task(self.session.listen(self._take))

    def _take(self, delivery: Delivery) -> None:
        match delivery:
            case RecordsArrived(records=records):
                self.seen += records
            case LinkChanged(link=link):
                self.link = link
            case BeatArrived(beat=beat):
                self.beat = beat

    @property
    def last_seq(self) -> int:
        """Newest sequence number it holds."""
        return self.seen[-1].seq if self.seen else 0

    def marks(self) -> list[int]:
        """Checksums of what it saw, to compare with the journal."""
        return marks(encode(record) for record in self.seen)

    async def close(self) -> None:
        """Leave."""
        await self.session.close()
        await self.task


class Wire:
    """A request socket without a session around it."""

    def __init__(self, address: str) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self._address = address
        self._socket = self._open()

    def _open(self) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RECONNECT_IVL, -1)
        socket.connect(self._address)
        return socket

    def reconnect(self) -> None:
        """Drop the connection and what was on it."""
        self._socket.close()
        self._socket = self._open()

    def submit(self, message: SubmitCommand) -> None:
        """Send a command; lost when the connection was cut before it."""
        with suppress(zmq.Again):
            self._socket.send(encode(message), zmq.DONTWAIT)

    def answer(self, timeout_s: float) -> Accepted | Rejected | None:
        """The next answer to a command, or None in time."""
        if not self._socket.poll(int(timeout_s * 1000)):
            return None
        reply = decode_hub(self._socket.recv())
        assert isinstance(reply, Accepted | Rejected)
        return reply

    def close(self) -> None:
        """Leave."""
        self._socket.close()


def command(id_: str, text: str, viewer: str = "fault") -> SubmitCommand:
    """A command as a script sends it."""
    return SubmitCommand(
        ref=0,
        id=id_,
        command=parse_command(text),
        viewer=viewer,
        issuer=viewer,
        expires_at=time.time() + 60,
        one_shot=True,
    )


def hub_of(run: RunDirectory) -> Endpoint:
    """The living hub of a run, once there is one."""
    until(lambda: (found := read_endpoint(run)) is not None and found.alive)
    endpoint = read_endpoint(run)
    assert endpoint is not None
    return endpoint


async def until_async(condition: Callable[[], object], timeout_s: float = 60.0) -> float:
    """Wait for a condition; seconds it took."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < timeout_s, "the condition did not come true in time"
        await asyncio.sleep(0.005)
    return time.monotonic() - started
