"""The byte stream to the viewer: frames over standard input and output, never blocking."""

from __future__ import annotations

import os

import msgspec
import zmq

from ...protocol.codec import encode
from ...protocol.ssh_protocol import MAGIC, FrameKind, FrameParser, Greeting, frames_of

_READ_BYTES = 64 * 1024
CLOGGED_BYTES = 8 * 1024 * 1024
"""Unsent output at which nothing more is taken in: the viewer does not read."""


class ViewerGone(Exception):
    """The stream is closed."""


class FrameStream:
    """One viewer."""

    def __init__(self, receiving: int, sending: int) -> None:
        """Take two file descriptors over."""
        self._in, self._out = receiving, sending
        os.set_blocking(receiving, False)
        os.set_blocking(sending, False)
        self._parser = FrameParser(expect_magic=False)
        self._unsent = bytearray()
        self.sent_bytes = 0
        """Everything given to `send` so far, the magic not counted."""

    def send_greeting(self, greeting: Greeting) -> None:
        """The magic and the first frame."""
        self._unsent += MAGIC
        self.send(FrameKind.GREETING, msgspec.json.encode(greeting))

    def send(self, channel: FrameKind, payload: bytes) -> None:
        """Send a message, as soon as the stream takes it."""
        data = frames_of(channel, payload)
        self.sent_bytes += len(data)
        self._unsent += data
        self.flush()

    def send_message(self, message: msgspec.Struct, channel: FrameKind = FrameKind.TALK) -> None:
        """Send a message of the protocol."""
        self.send(channel, encode(message))

    def flush(self) -> None:
        """Write what the stream takes now.

        Raises:
            ViewerGone: nobody is there.
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
        """Send the last words, as far as the viewer reads them."""
        poller = zmq.Poller()
        poller.register(self._out, zmq.POLLOUT)
        while self._unsent and poller.poll(timeout_ms):
            self.flush()

    def register(self, poller: zmq.Poller) -> None:
        """Wake up when something can be done here."""
        if len(self._unsent) < CLOGGED_BYTES:
            poller.register(self._in, zmq.POLLIN)
        if self._unsent:
            poller.register(self._out, zmq.POLLOUT)

    def receive(self) -> list[tuple[int, bytes]]:
        """Messages that have come, as (channel, payload).

        Raises:
            ViewerGone: the viewer closed the stream.
            DecodeError: it sends nonsense.
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
