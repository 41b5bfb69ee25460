"""The bridge's connection to the hub of a run, kept up through restarts of the hub."""

from __future__ import annotations

from collections import deque
from contextlib import suppress

import zmq

from ...errors import NotOwner
from ...protocol.codec import BEAT_TOPIC, DecodeError, decode_hub, encode
from ...protocol.requests import AnyHubMessage, ClientMessage, Hello, Ping, Refused, Welcome
from ...run.processes.marks import Endpoint, read_endpoint, read_engine
from ...run.processes.ownership import require_own_hub, require_own_process
from ...run.run_dir import RunDirectory
from ..launch import launch_hub

OWN_REF = -1
"""Request number of the bridge's own messages; viewers number theirs from 0."""
_LOOK_S = 0.2
_PING_S = 2.0
_RELAUNCH_S = 2.0
_QUEUED = 64


class HubClient:
    """The connection to whichever hub serves the run now; times are monotonic seconds."""

    def __init__(self, run: RunDirectory, hello: Hello) -> None:
        self._run = run
        self._hello = hello
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._endpoint: Endpoint | None = None
        self._requests: zmq.Socket[bytes] | None = None
        self._beats: zmq.Socket[bytes] | None = None
        self._look_at = self._ping_at = self._launch_at = 0.0
        self._held: deque[ClientMessage] = deque(maxlen=_QUEUED)
        self.greeted = False
        """Whether the hub has answered `Hello` and accepts requests."""
        self.refusal = ""
        """Why the hub refused this viewer; empty if it did not."""
        self.engine_alive = False

    @property
    def connected(self) -> bool:
        """Whether a live hub serves the run."""
        return self._endpoint is not None

    @property
    def sockets(self) -> list[zmq.Socket[bytes]]:
        """The open sockets, to be polled for reading."""
        return [s for s in (self._requests, self._beats) if s is not None]

    def maintain(self, now: float) -> None:
        """Look for a new hub or engine, start a missing hub and ping it, each when it is due."""
        if now >= self._look_at:
            self._look_at = now + _LOOK_S
            self._look(now)
        if self.greeted and now >= self._ping_at:
            self._ping_at = now + _PING_S
            self._send(Ping(ref=OWN_REF))

    def _look(self, now: float) -> None:
        engine = read_engine(self._run)
        self.engine_alive = engine is not None and engine.alive
        endpoint = self._own_endpoint()
        if endpoint != self._endpoint:
            self._disconnect()
            if endpoint is not None:
                self._connect(endpoint)
        if self.refusal or engine is None:
            return
        if endpoint is None and self.engine_alive and now >= self._launch_at:
            try:
                require_own_process(engine, "the engine")
            except NotOwner as refusal:
                self.refusal = str(refusal)
                return
            self._launch_at = now + _RELAUNCH_S
            with suppress(OSError):
                launch_hub(self._run)

    def _own_endpoint(self) -> Endpoint | None:
        """Return the endpoint of the live hub; None if there is none that this user may use."""
        endpoint = read_endpoint(self._run)
        if endpoint is None or not endpoint.alive or endpoint == self._endpoint:
            return endpoint if endpoint is not None and endpoint.alive else None
        try:
            require_own_hub(endpoint)
        except NotOwner as refusal:
            self.refusal = str(refusal)
        except OSError:
            pass  # the hub ends, and takes its sockets with it
        else:
            return endpoint
        return None

    def _connect(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._beats = self._open(zmq.SUB)
        self._beats.setsockopt(zmq.SUBSCRIBE, BEAT_TOPIC)
        self._beats.connect(endpoint.events)
        self._requests = self._open(zmq.DEALER)
        self._requests.connect(endpoint.requests)
        self._send(self._hello)

    def _open(self, kind: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.HANDSHAKE_IVL, 1000)
        socket.setsockopt(zmq.SNDHWM, _QUEUED)
        socket.setsockopt(zmq.RCVHWM, _QUEUED)
        return socket

    def _disconnect(self) -> None:
        for socket in self.sockets:
            socket.close(linger=0)
        self._requests = self._beats = self._endpoint = None
        self.greeted = False

    def ask(self, message: ClientMessage) -> None:
        """Send a request to the hub; without a hub, the newest 64 wait for the next one."""
        self._held.append(message)
        self._send_held()

    def _send_held(self) -> None:
        while self.greeted and self._held:
            self._send(self._held.popleft())

    def _send(self, message: ClientMessage) -> None:
        if self._requests is not None:
            with suppress(zmq.Again):
                self._requests.send(encode(message), zmq.DONTWAIT)

    def replies(self) -> list[AnyHubMessage]:
        """Return the replies of the hub since the last call, without those to the bridge's pings.

        The `Welcome` to the bridge's `Hello` sets `greeted` and is returned; a refusal of it sets
        `refusal` and is left out.
        """
        found = []
        for data in _drain(self._requests):
            try:
                reply = decode_hub(data[0])
            except DecodeError:
                continue
            if isinstance(reply, Welcome):
                self.greeted = True
                self._send_held()
            elif isinstance(reply, Refused) and reply.ref == OWN_REF:
                self.refusal = reply.reason
            if isinstance(reply, Welcome) or reply.ref != OWN_REF:
                found.append(reply)
        return found

    def beats(self) -> list[bytes]:
        """Return the newest heartbeat since the last call, as a list of at most one."""
        return [frames[1] for frames in _drain(self._beats) if len(frames) == 2][-1:]

    def close(self) -> None:
        """Close the connection without waiting."""
        self._context.destroy(linger=0)


def _drain(socket: zmq.Socket[bytes] | None) -> list[list[bytes]]:
    found: list[list[bytes]] = []
    while socket is not None and len(found) < 2 * _QUEUED:
        try:
            found.append(socket.recv_multipart(zmq.DONTWAIT))
        except zmq.Again:
            break
    return found
