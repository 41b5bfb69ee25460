"""Which records of a run are worth a message to people, and in which words; pure."""

from __future__ import annotations

import msgspec

from ...protocol.events import (
    AnomalyRaised,
    AnomalyResolved,
    AutopilotDecided,
    ProbationEnded,
    Record,
    RunEnded,
    StateChanged,
)
from ...protocol.states import RunState

_DECIDED = {"act": "sends", "propose": "proposes", "wait": "does not send"}
_GOOD_ENDS = (RunState.FINISHED, RunState.STOPPED)


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message about a run."""

    kind: str
    """finished, failed, halted, alarm, recovery, stalled or disk."""
    incident: str
    """What it is about; a second message about the same is not sent."""
    text: str


def message_about(record: Record) -> Message | None:
    """Return the message about a record; None for most records."""
    event, found = record.event, None
    match event:
        case RunEnded(state=state, error=error):
            kind = "finished" if state in _GOOD_ENDS else "failed"
            found = kind, f"end {record.seq}", f"{state.value}{': ' + error if error else ''}"
        case StateChanged(state=RunState.HALTED, detail=detail):
            found = "halted", f"halt {record.seq}", f"halted: {detail}"
        case AnomalyRaised(severity="alarm"):
            found = "alarm", f"alarm {event.incident or event.id}", _alarm(event)
        case AnomalyResolved(id=ident, verdict="not recovered"):
            found = "alarm", f"verdict {ident}", f"{ident} has not recovered"
        case AutopilotDecided():
            does = _DECIDED.get(event.decision, event.decision)
            text = f"the autopilot {does} `{event.command}` ({event.reason})"
            found = "recovery", f"decision {record.seq}", text
        case ProbationEnded():
            how = "passed its probation" if event.passed else f"failed: {event.reason}"
            text = f"the recovery to {event.checkpoint} {how}"
            found = "recovery", f"probation {record.seq}", text
        case _:
            pass
    if found is None:
        return None
    kind, incident, text = found
    return Message(kind=kind, incident=incident, text=f"step {record.step:,}: {text}")


def _alarm(event: AnomalyRaised) -> str:
    first = f"; recommended: {event.ways[0].text}" if event.ways else ""
    return f"{event.kind.replace('_', ' ')}: {event.headline}{first}"
