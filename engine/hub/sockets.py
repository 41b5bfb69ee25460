"""The hub's two ZeroMQ sockets: bound privately, never blocking, never lingering."""

from __future__ import annotations

import os
from pathlib import Path

import zmq

MAX_REQUEST_BYTES = 64 * 1024
EVENTS_QUEUED = 10_000
"""Records kept per slow viewer; what is lost beyond that is refilled from the journal."""
REPLIES_QUEUED = 256


class HubSockets:
    """PUB for the event stream and ROUTER for requests, over ipc in a private folder.

    `bind` replaces whatever file is at a path, so the caller must own the run's hub lock. Only
    processes of this user are let in, even if somebody opens the folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._context = zmq.Context()
        self.events = self._open(zmq.PUB, folder / "pub", EVENTS_QUEUED)
        self.requests = self._open(zmq.ROUTER, folder / "req", REPLIES_QUEUED)
        self.requests.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.unsent = 0
        """Replies whose viewer was gone or did not read."""

    def _open(self, kind: int, path: Path, queued: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, queued)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_REQUEST_BYTES)
        socket.setsockopt(zmq.HANDSHAKE_IVL, 1000)
        socket.setsockopt(zmq.IPC_FILTER_UID, os.getuid())
        socket.bind(f"ipc://{path}")
        return socket

    def wait(self, timeout_s: float) -> bool:
        """Whether a request waits, after at most `timeout_s`."""
        return bool(self.requests.poll(int(timeout_s * 1000), zmq.POLLIN))

    def receive(self) -> list[bytes] | None:
        """The next waiting request as [connection, payload, …], or None."""
        try:
            return self.requests.recv_multipart(zmq.DONTWAIT)
        except zmq.Again:
            return None

    def reply(self, connection: bytes, payload: bytes) -> None:
        """Answer a request; a viewer that is gone or does not read loses the answer."""
        try:
            self.requests.send_multipart([connection, payload], zmq.DONTWAIT)
        except zmq.ZMQError:
            self.unsent += 1

    def publish(self, topic: bytes, payload: bytes) -> None:
        """Send to all viewers; one that does not keep up loses it."""
        self.events.send_multipart([topic, payload], zmq.DONTWAIT)

    def close(self) -> None:
        """Leave at once and take the files away."""
        self._context.destroy(linger=0)
        for name in ("pub", "req"):
            (self._folder / name).unlink(missing_ok=True)
