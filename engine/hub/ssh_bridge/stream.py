"""The byte stream to the viewer: non-blocking frames over standard input and output."""

from __future__ import annotations

import os

import msgspec
import zmq

from ...protocol.codec import encode
from ...protocol.ssh_protocol import MAGIC, FrameKind, FrameParser, Greeting, frames_of

_READ_BYTES = 64 * 1024
CLOGGED_BYTES = 8 * 1024 * 1024
"""Bytes of unsent output at which no more input is read, because the viewer does not read."""


class ViewerGone(Exception):
    """The viewer has closed the stream."""


class FrameStream:
    """A stream of frames to and from one viewer."""

    def __init__(self, receiving: int, sending: int) -> None:
        """Take over two file descriptors and make them non-blocking."""
        self._in, self._out = receiving, sending
        os.set_blocking(receiving, False)
        os.set_blocking(sending, False)
        self._parser = FrameParser(expect_magic=False)
        self._unsent = bytearray()
        self.sent_bytes = 0
        """Total bytes passed to `send`, including unsent ones but not the magic bytes."""

    def send_greeting(self, greeting: Greeting) -> None:
        """Send the magic bytes and the greeting."""
        self._unsent += MAGIC
        self.send(FrameKind.GREETING, msgspec.json.encode(greeting))

    def send(self, channel: FrameKind, payload: bytes) -> None:
        """Send a payload, as soon as the stream accepts it.

        Raises:
            ViewerGone: the viewer closed the stream.
        """
        data = frames_of(channel, payload)
        self.sent_bytes += len(data)
        self._unsent += data
        self.flush()

    def send_message(self, message: msgspec.Struct, channel: FrameKind = FrameKind.TALK) -> None:
        """Encode and send a message."""
        self.send(channel, encode(message))

    def flush(self) -> None:
        """Write unsent bytes until the stream is full.

        Raises:
            ViewerGone: the viewer closed the stream.
        """
        while self._unsent:
            try:
                written = os.write(self._out, memoryview(self._unsent)[: 1 << 18])
            except BlockingIOError:
                return
            except OSError as error:
                raise ViewerGone(str(error)) from None
            del self._unsent[:written]

    def drain(self, timeout_ms: int = 2_000) -> None:
        """Write the unsent bytes, waiting up to `timeout_ms` each time the stream is full.

        What the viewer does not take in that time stays unsent.

        Raises:
            ViewerGone: the viewer closed the stream.
        """
        poller = zmq.Poller()
        poller.register(self._out, zmq.POLLOUT)
        while self._unsent and poller.poll(timeout_ms):
            self.flush()

    def register(self, poller: zmq.Poller) -> None:
        """Register what to wait for: output while bytes are unsent, input unless too many are."""
        if len(self._unsent) < CLOGGED_BYTES:
            poller.register(self._in, zmq.POLLIN)
        if self._unsent:
            poller.register(self._out, zmq.POLLOUT)

    def receive(self) -> list[tuple[int, bytes]]:
        """Return the messages that have arrived as (channel, payload).

        Raises:
            ViewerGone: the viewer closed the stream.
            DecodeError: the bytes are not valid frames.
        """
        if len(self._unsent) >= CLOGGED_BYTES:
            return []
        try:
            data = os.read(self._in, _READ_BYTES)
        except BlockingIOError:
            return []
        except OSError as error:
            raise ViewerGone(str(error)) from None
        if not data:
            raise ViewerGone("end of the stream")
        return self._parser.feed(data)
