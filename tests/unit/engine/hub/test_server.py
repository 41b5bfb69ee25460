"""The hub answers the connection that asked, and counts what it refuses."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fttui.engine.hub.server import ErrorCounts, Hub
from fttui.engine.protocol.codec import decode_hub, encode
from fttui.engine.protocol.commands import Stop
from fttui.engine.protocol.requests import Accepted, Ping, Pong, Refused, SubmitCommand
from fttui.engine.run.control_log import ControlWriter
from tests.support.engine_double import EngineDouble, make_run
from tests.support.loopback import Loopback


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([b"ann", encode(Ping(ref=7))], None),
        ([b"ann", b"nonsense"], "invalid message: "),
        ([b"ann"], "invalid message: expected one frame, got 0"),
        ([b"ann", b"one", b"two"], "invalid message: expected one frame, got 2"),
    ],
)
def test_a_reply_goes_to_the_connection_that_asked(frames: list[bytes], reason: str | None) -> None:
    sent: list[tuple[bytes, bytes]] = []
    hub: Any = SimpleNamespace(
        counters=ErrorCounts(),
        _answer=lambda connection, message: Pong(ref=message.ref),
        _sockets=SimpleNamespace(reply=lambda *given: sent.append(given)),
    )
    Hub._serve(hub, frames)
    ((connection, data),) = sent
    reply = decode_hub(data)
    assert connection == b"ann"
    assert isinstance(reply, Pong if reason is None else Refused)
    assert hub.counters.refused == (reason is not None)
    if isinstance(reply, Refused):
        assert reply.reason.startswith(reason or "")


def test_a_stop_is_accepted_where_the_lock_of_decisions_cannot_be_opened(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    EngineDouble(run).start()
    (run.path / "control.gate").mkdir()
    control = ControlWriter(run)
    hub = Hub(run, control, Loopback(), 600.0)
    stop = SubmitCommand(ref=1, id="s1", command=Stop(), viewer="me", issuer="me")
    assert isinstance(hub._answer(b"ann", stop), Accepted)
    assert [entry.id for entry in control.entries] == ["s1"]
    control.close()
