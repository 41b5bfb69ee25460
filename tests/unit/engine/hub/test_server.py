"""The hub answers the connection that asked, and counts what it refuses."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fttui.engine.hub.live_status import LiveStatus
from fttui.engine.hub.server import FOLDER_GONE_S, ErrorCounts, Hub
from fttui.engine.hub.viewers import SILENT_S
from fttui.engine.protocol.codec import PROTOCOL_VERSION, decode_hub, encode
from fttui.engine.protocol.commands import Recover, Rollback, ScaleLr, Stop
from fttui.engine.protocol.requests import (
    Accepted,
    Hello,
    Ping,
    Pong,
    Refused,
    Rejected,
    ReleaseControl,
    SubmitCommand,
    TakeControl,
)
from fttui.engine.run.control_log import ControlWriter
from fttui.engine.run.journal import JournalLocked
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


@pytest.mark.parametrize("command", [Rollback(checkpoint="20"), Recover(anomaly="spike-7")])
def test_a_command_that_names_what_the_run_lacks_is_rejected(
    tmp_path: Path, command: Rollback | Recover
) -> None:
    run = make_run(tmp_path)
    EngineDouble(run).start()
    control = ControlWriter(run)
    hub = Hub(run, control, Loopback(), 600.0)
    asked = SubmitCommand(ref=1, id="r1", command=command, viewer="me", issuer="me")
    reply = hub._answer(b"ann", asked)
    assert isinstance(reply, Rejected)
    assert "; existing " in reply.reason
    assert [entry.rejected for entry in control.entries] == [reply.reason]
    control.close()


def test_a_read_only_viewer_sends_nothing_after_a_long_silence(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    EngineDouble(run).start()
    control = ControlWriter(run)
    hub = Hub(run, control, Loopback(), 600.0)
    greeting = Hello(ref=1, version=PROTOCOL_VERSION, viewer="eve", issuer="eve", read_only=True)
    hub._answer(b"eve", greeting)
    hub._viewers.drop_silent(time.monotonic() + SILENT_S + 1)
    halve = SubmitCommand(ref=2, id="c1", command=ScaleLr(factor=0.5), viewer="eve", issuer="eve")
    assert isinstance(hub._answer(b"eve", halve), Rejected)
    for asked in (
        TakeControl(ref=3, viewer="eve", issuer="eve"),
        ReleaseControl(ref=4, viewer="ann"),
    ):
        assert isinstance(hub._answer(b"eve", asked), Refused)
    assert control.entries == []
    control.close()


def test_the_limits_of_agents_are_those_of_the_newest_start(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    engine = EngineDouble(run)
    engine.start()
    control = ControlWriter(run)
    hub = Hub(run, control, Loopback(), 600.0)

    def sent(id_: str) -> object:
        halve = ScaleLr(factor=0.5)
        message = SubmitCommand(
            ref=1, id=id_, command=halve, viewer="bot", issuer="bot", agent="act"
        )
        return hub._answer(b"bot", message)

    assert isinstance(sent("c1"), Accepted), "an older configuration lacks the section"
    run.write(run.config, b"agents: {allow: read}\n")
    engine.start(incarnation=2)
    refused = sent("c2")
    assert isinstance(refused, Rejected)
    assert "agents.allow" in refused.reason
    run.write(run.config, b"agents: {per_hour: 1}\n")
    engine.start(incarnation=3)
    refused = sent("c3")
    assert isinstance(refused, Rejected)
    assert "agents.per_hour" in refused.reason
    control.close()


def test_beats_without_the_control_journal_are_counted_until_it_is_free() -> None:
    locked = True

    def keep_in_place() -> bool:
        if locked:
            raise JournalLocked("another hub has it")
        return False

    hub: Any = SimpleNamespace(
        _beats_locked_out=0, _control=SimpleNamespace(keep_in_place=keep_in_place)
    )
    for _ in range(3):
        Hub._keep_control_journal(hub)
    assert hub._beats_locked_out == 3
    locked = False
    Hub._keep_control_journal(hub)
    assert hub._beats_locked_out == 0


def test_the_hub_is_a_program(tmp_path: Path) -> None:
    missing = tmp_path / "no-run"
    command = [sys.executable, "-m", "fttui.engine.hub", str(missing)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert f"{missing} cannot be served" in done.stderr


def test_an_engine_whose_mark_is_removed_counts_as_alive_for_a_while(tmp_path: Path) -> None:
    engine = EngineDouble(make_run(tmp_path))
    engine.start()
    hub: Any = SimpleNamespace(_run=engine.run, _status=LiveStatus(), _mark_seen_at=0.0)
    Hub._update_engine(hub)
    assert hub._status.engine.alive
    shutil.rmtree(engine.run.path)
    Hub._update_engine(hub)
    assert hub._status.engine.alive, "the hub would end at once, and its decisions with it"
    hub._mark_seen_at -= 2 * FOLDER_GONE_S
    Hub._update_engine(hub)
    assert not hub._status.engine.alive
