"""A pause, with and without the release of GPU memory, in every order of the commands."""

from __future__ import annotations

from collections import deque

import pytest

from fttui.engine.protocol.commands import AnyCommand, parse_command
from fttui.engine.protocol.events import AnyEvent, CommandApplied
from fttui.engine.protocol.settings import RunSettings
from fttui.engine.run.control_log import ControlEntry
from fttui.engine.train.control import command_scheduler
from fttui.engine.train.control.command_queue import NewCommands
from fttui.engine.train.control.command_scheduler import CommandScheduler
from fttui.engine.train.control.control_state import ControlState
from fttui.engine.train.event_log import EventLog


class Device:
    """Memory that is on the device or released; writes down every change."""

    def __init__(self) -> None:
        self.released = False
        self.changes: list[str] = []

    def release(self) -> None:
        if not self.released:
            self.released = True
            self.changes.append("released")

    def reclaim(self) -> None:
        if self.released:
            self.released = False
            self.changes.append("reclaimed")


class Queue:
    """Delivers the next command at each look."""

    def __init__(self, texts: list[str], device: Device) -> None:
        self._texts = deque(texts)
        self._device = device

    def ask(self) -> None:
        """Needs no question."""

    def look(self) -> NewCommands:
        if not self._texts:
            return NewCommands([], stop_signal=False)
        text = self._texts.popleft()
        self._device.changes.append(text)
        command: AnyCommand = parse_command(text)
        entry = ControlEntry(seq=1, time=0.0, id=text, command=command, issuer="test")
        return NewCommands([entry], stop_signal=False)


class Executor:
    """Carries out one-shot commands, which need the device."""

    due = repeating = False

    def __init__(self, device: Device) -> None:
        self._device = device

    def perform(self, command: AnyCommand, issuer: str) -> tuple[str, str]:
        assert not self._device.released, "there is nothing to work on"
        return "", ""

    def plan(self) -> None: ...
    def scheduled(self) -> None: ...
    def prepare(self) -> None: ...

    def mark(self) -> None: ...
    def rewind(self) -> None: ...
    def conclude(self) -> None: ...

    def while_held(self) -> None: ...


def _boundary(texts: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Send one command after another at a boundary; return them and what the memory did."""
    monkeypatch.setattr(command_scheduler, "_HOLD_TICK_S", 0)
    device, log = Device(), EventLog(None)
    executor, applied = Executor(device), list[AnyEvent]()
    log.listen(applied.append)
    settings = RunSettings()
    state = ControlState(
        settings, log.position, norm_percentile=lambda _: None, store=lambda _: None
    )
    scheduler = CommandScheduler(Queue(texts, device), log, state, executor, device, refuses={})
    assert scheduler.at_boundary(executor)
    assert [e.command for e in applied if isinstance(e, CommandApplied)] == texts
    assert not state.held
    return device.changes


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["pause", "resume"], ["pause", "resume"]),
        (["pause release", "resume"], ["pause release", "released", "resume", "reclaimed"]),
        (
            ["pause", "pause release", "resume"],
            ["pause", "pause release", "released", "resume", "reclaimed"],
        ),
        (  # a plain pause asks for the memory again, and training stays paused
            ["pause release", "pause", "resume"],
            ["pause release", "released", "pause", "reclaimed", "resume"],
        ),
        (  # a checkpoint needs the device, which is released again after it
            ["pause release", "checkpoint", "resume"],
            ["pause release", "released", "checkpoint", "reclaimed", "released", "resume",
             "reclaimed"],
        ),
    ],
)  # fmt: skip
def test_memory_is_released_during_a_pause_release_only(
    monkeypatch: pytest.MonkeyPatch, texts: list[str], expected: list[str]
) -> None:
    assert _boundary(texts, monkeypatch) == expected
