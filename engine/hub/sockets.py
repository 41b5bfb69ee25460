"""The hub's two ZeroMQ sockets, which are private to the user and whose sends never block."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import zmq

MAX_REQUEST_BYTES = 64 * 1024
EVENTS_QUEUED = 10_000
"""Records queued for a slow viewer; it fetches dropped ones from the journal."""
REPLIES_QUEUED = 256


class HubSockets:
    """A PUB socket for events and a ROUTER socket for requests, over ipc in a private folder.

    Binding replaces any file at the path, so the caller must hold the lock of the run's hub. Only
    processes of this user can connect, even if the folder's mode is changed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._context = zmq.Context()
        self.events = self._open(zmq.PUB, folder / "pub", EVENTS_QUEUED)
        self.requests = self._open(zmq.ROUTER, folder / "req", REPLIES_QUEUED)
        self.requests.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.unsent = 0
        """Number of replies to viewers that were gone or did not read."""

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
        """Wait up to `timeout_s` for a request; return whether there is one."""
        return bool(self.requests.poll(int(timeout_s * 1000), zmq.POLLIN))

    def receive(self) -> list[bytes] | None:
        """Return the next request as [connection, payload, …], or None if there is none."""
        try:
            return self.requests.recv_multipart(zmq.DONTWAIT)
        except zmq.Again:
            return None

    def reply(self, connection: bytes, payload: bytes) -> None:
        """Send a reply; it is dropped if the viewer is gone or does not read."""
        try:
            self.requests.send_multipart([connection, payload], zmq.DONTWAIT)
        except zmq.ZMQError:
            self.unsent += 1

    def publish(self, topic: bytes, payload: bytes) -> None:
        """Send a message to all viewers; it is dropped for a viewer whose queue is full."""
        self.events.send_multipart([topic, payload], zmq.DONTWAIT)

    def close(self) -> None:
        """Close the sockets without waiting; remove their files and the folder, if it is empty."""
        self._context.destroy(linger=0)
        for name in ("pub", "req"):
            (self._folder / name).unlink(missing_ok=True)
        with suppress(OSError):
            self._folder.rmdir()
