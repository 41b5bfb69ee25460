"""Commands at chosen steps of a run, and what the run has recorded.

Nothing here needs the engine's own trainers, so that scripts with older libraries can be played.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from fttui.engine.protocol.codec import decode_record
from fttui.engine.protocol.commands import parse_command
from fttui.engine.protocol.events import (
    AnyEvent,
    LogEmitted,
    Record,
    StateChanged,
    StepFinished,
)
from fttui.engine.protocol.states import RunState
from fttui.engine.run.control_log import ControlEntry, ControlWriter
from fttui.engine.run.journal import FrameReader
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.train.controlled_session import SessionOutcome
from fttui.engine.train.event_log import EventLog
from fttui.engine.train.journal_writer import JournalWriter

E = TypeVar("E", bound=msgspec.Struct)


@dataclass
class Script:
    """Commands to send when a step has been journaled, and what to call then."""

    commands: dict[int, list[str]] = field(default_factory=dict)
    calls: dict[int, Callable[[], None]] = field(default_factory=dict)
    early: list[str] = field(default_factory=list)
    """Commands that come while the model is still being loaded."""
    states: dict[RunState, list[str]] = field(default_factory=dict)
    """Commands to send the first time a state is entered."""
    on_log: dict[str, list[str]] = field(default_factory=dict)
    """Commands to send the first time a logged line has these words."""
    senders: list[Callable[[str], None]] = field(default_factory=list)
    """Functions that send a command now, one for each time the script is played."""


class ScriptedEventLog(EventLog):
    """An event log that plays the person at the keyboard."""

    def __init__(
        self,
        journal_writer: JournalWriter | None,
        control: ControlWriter | None,
        script: Script,
        timeline: int,
    ) -> None:
        super().__init__(journal_writer, timeline=timeline)
        self._control = control
        self._script = script
        self._sent = 0
        script.senders.append(self.send)

    def record(self, event: AnyEvent) -> None:
        super().record(event)
        if isinstance(event, StateChanged):
            for text in self._script.states.pop(event.state, []):
                self.send(text)
        if isinstance(event, LogEmitted):
            for words in [w for w in self._script.on_log if w in event.text]:
                for text in self._script.on_log.pop(words):
                    self.send(text)
        if isinstance(event, StepFinished):
            if call := self._script.calls.pop(self.step, None):
                call()
            for text in self._script.commands.pop(self.step, []):
                self.send(text)

    def send(self, text: str) -> None:
        if self._control is None:
            return
        self._sent += 1
        seq = self._control.last_seq + 1
        self._control.append(
            ControlEntry(
                seq=seq, time=time.time(), id=f"c{seq}", command=parse_command(text), issuer="test"
            )
        )


@dataclass
class Played:
    """A run that has been played."""

    run: RunDirectory
    outcome: SessionOutcome
    records: list[Record]

    def events(self, kind: type[E]) -> list[E]:
        """Events of a kind, in order."""
        return [event for _, event in self.at(kind)]

    def at(self, kind: type[E]) -> list[tuple[int, E]]:
        """Events of a kind with the step they happened at, in order."""
        return [(r.step, r.event) for r in self.records if isinstance(r.event, kind)]

    def losses(self, timeline: int | None = None) -> dict[int, float]:
        """Loss by step, of one timeline or the newest of each step."""
        return {
            record.step: record.event.loss_or_nan
            for record in self.records
            if isinstance(record.event, StepFinished)
            and (timeline is None or record.timeline == timeline)
        }


def read_records(run: RunDirectory) -> list[Record]:
    """All records of a run."""
    found = [decode_record(payload) for payload in FrameReader(run.journal)]
    return [record for record in found if record is not None]
