"""A hub's sockets without a network."""

from __future__ import annotations

from collections import deque

from fttui.engine.hub.sockets import HubSockets
from fttui.engine.protocol.codec import BEAT_TOPIC, decode_beat, decode_hub
from fttui.engine.protocol.requests import AnyHubMessage, Beat


class Loopback(HubSockets):
    """The hub receives what a test puts in; its answers and its newest heartbeat are kept."""

    def __init__(self) -> None:
        self.waiting: deque[list[bytes]] = deque()
        self.answers: dict[bytes, list[AnyHubMessage]] = {}
        self.beat: Beat | None = None

    def wait(self, timeout_s: float) -> bool:
        return bool(self.waiting)

    def receive(self) -> list[bytes] | None:
        return self.waiting.popleft() if self.waiting else None

    def reply(self, connection: bytes, payload: bytes) -> None:
        self.answers.setdefault(connection, []).append(decode_hub(payload))

    def publish(self, topic: bytes, payload: bytes) -> None:
        if topic == BEAT_TOPIC:
            self.beat = decode_beat(payload)
