"""Frames between the bridge and its viewer, over a pipe that may be full or closed."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import zmq

from fttui.engine.hub.ssh_bridge.stream import CLOGGED_BYTES, FrameStream, ViewerGone
from fttui.engine.protocol.ssh_protocol import FrameKind, FrameParser, frames_of


class Pipes:
    """A stream and the viewer's ends of it."""

    def __init__(self) -> None:
        receiving, self.to_stream = os.pipe()
        self.from_stream, sending = os.pipe()
        self.stream = FrameStream(receiving, sending)
        self.open = [receiving, self.to_stream, self.from_stream, sending]

    def close(self, descriptor: int) -> None:
        os.close(descriptor)
        self.open.remove(descriptor)


@pytest.fixture
def pipes() -> Iterator[Pipes]:
    made = Pipes()
    yield made
    for descriptor in list(made.open):
        made.close(descriptor)


def test_messages_arrive_whole_and_none_is_no_error(pipes: Pipes) -> None:
    assert pipes.stream.receive() == []
    frame = frames_of(FrameKind.TALK, b"hello")
    os.write(pipes.to_stream, frame[:3])
    assert pipes.stream.receive() == []
    os.write(pipes.to_stream, frame[3:])
    assert pipes.stream.receive() == [(FrameKind.TALK, b"hello")]


def test_the_end_of_the_stream_means_that_the_viewer_is_gone(pipes: Pipes) -> None:
    pipes.close(pipes.to_stream)
    with pytest.raises(ViewerGone, match="end of the stream"):
        pipes.stream.receive()


def test_a_viewer_that_does_not_read_is_not_listened_to(pipes: Pipes) -> None:
    os.write(pipes.to_stream, frames_of(FrameKind.TALK, b"hello"))
    poller = zmq.Poller()
    pipes.stream.send(FrameKind.TALK, bytes(CLOGGED_BYTES + (1 << 20)))
    pipes.stream.register(poller)
    assert [events for _, events in poller.sockets] == [zmq.POLLOUT]
    assert pipes.stream.receive() == []


def test_what_did_not_fit_is_sent_later_and_counted_at_once(pipes: Pipes) -> None:
    payload = bytes(1 << 20)
    pipes.stream.send(FrameKind.TALK, payload)
    assert pipes.stream.sent_bytes == len(frames_of(FrameKind.TALK, payload))
    parser = FrameParser(expect_magic=False)
    found: list[tuple[int, bytes]] = []
    poller = zmq.Poller()
    pipes.stream.register(poller)
    assert sorted(events for _, events in poller.sockets) == [zmq.POLLIN, zmq.POLLOUT]
    while not found:
        found = parser.feed(os.read(pipes.from_stream, 1 << 16))
        pipes.stream.drain(0)
    assert found == [(FrameKind.TALK, payload)]
    poller = zmq.Poller()
    pipes.stream.register(poller)
    assert [events for _, events in poller.sockets] == [zmq.POLLIN]


def test_a_closed_output_means_that_the_viewer_is_gone(pipes: Pipes) -> None:
    pipes.close(pipes.from_stream)
    with pytest.raises(ViewerGone):
        pipes.stream.send(FrameKind.TALK, b"hello")
