"""The page of all events, generated from `engine/protocol/events.py`."""

from __future__ import annotations

from typing import get_args

import msgspec

from ...protocol import event_parts
from ...protocol.events import AnyEvent, Record
from ...protocol.settings import RunSettings
from ...protocol.states import RunState
from .tables import first_lines, row, struct_section

_INTRO = """\
# Events

What happens in a run, as the journal keeps it and the hub publishes it. `fttui events RUN`
prints it as JSON lines. Each line is a record: `seq`, `time`, `step`, `timeline` and `event`,
and the event names its kind in `k`.

```
fttui events RUN --since 1000 --follow
```

Fields are added to events in later versions, always with a default, and new kinds may appear:
skip what you do not know. NaN and infinity occur as losses and norms. [Run folder](run-folder.md)
explains how the journal stores records, and [protocol](wire.md) how they reach a viewer.
Generated from `engine/protocol/` with `python -m fttui.engine.run.reference docs/reference`.
"""
PARTS: tuple[type[msgspec.Struct], ...] = (
    event_parts.DataFinding,
    event_parts.RecommendedCommand,
    event_parts.ModuleFlow,
    event_parts.ProfilePart,
    event_parts.KernelTime,
    event_parts.CulpritSearch,
    event_parts.Culprit,
    RunSettings,
)
"""Structs inside events."""


def events_page() -> str:
    """Return the Markdown text of docs/reference/events.md."""
    kinds: tuple[type[msgspec.Struct], ...] = get_args(AnyEvent)
    linked = frozenset(struct.__name__ for struct in (*kinds, *PARTS))
    lines = [_INTRO, *struct_section(Record, "##", linked), "## Kinds\n"]
    lines += ["| kind | when |", "|---|---|"]
    lines += [row(f"[{one.__name__}](#{one.__name__.lower()})", first_lines(one)) for one in kinds]
    lines.append("")
    for struct in kinds:
        lines += struct_section(struct, "###", linked)
    lines.append("## Parts of events\n")
    for struct in PARTS:
        lines += struct_section(struct, "###", linked)
    lines += ["## States\n", f"{first_lines(RunState).rstrip('.')}: "]
    lines[-1] += ", ".join(f"*{state.value}*" for state in RunState) + "."
    return "\n".join(lines) + "\n"
