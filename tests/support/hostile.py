"""Text that takes over a terminal, in every text of a run; and a check of what a terminal gets."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

from fttui.engine.protocol.codec import encode
from fttui.engine.protocol.events import Record, StateChanged
from fttui.engine.run.journal import FrameWriter
from fttui.engine.run.run_dir import RunDirectory
from tests.contract.examples import all_messages

EVIL = (
    "\x1b]52;c;aGF4\x07\x1b[2J\r\x9b31m\x8b\u202eevil\u2066\u200b\u2028\ufeff\U000e0041\x7f\x00"
    "\nstep 9 loss 0"
)
"""The clipboard, the screen, the line, C1, a reversal, the invisible, and a line of its own."""
_FORBIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e0fff]"
)
_STYLES = re.compile(r"\x1b\[[0-9;:]*m|\x1b\[\d+;\d+H|\x1b\]8;[^\x1b\x07]*\x1b\\")
"""What the app itself may send while it paints: colours, positions, links."""


def poisoned(value: Any) -> Any:
    """A value with hostile text after every text in it, also those of its fields and keys."""
    if isinstance(value, str):
        return value + EVIL
    if isinstance(value, msgspec.Struct):
        changes = {name: poisoned(getattr(value, name)) for name in value.__struct_fields__}
        made = msgspec.structs.replace(value, **changes)
        try:
            msgspec.convert(msgspec.to_builtins(made), type(value))
        except msgspec.ValidationError:
            return value  # a field that takes only certain words
        return made
    if isinstance(value, list | tuple):
        return type(value)(poisoned(child) for child in value)
    if isinstance(value, dict):
        return {poisoned(key): poisoned(child) for key, child in value.items()}
    return value


def hostile_events() -> list[Any]:
    """Every kind of event, with hostile text in all its fields."""
    found = [m.event for m in all_messages().values() if isinstance(m, Record)]
    return [poisoned(event) for event in found if not isinstance(event, StateChanged)]


def write_hostile_journal(run: RunDirectory) -> None:
    """Write a journal with every hostile event."""
    writer = FrameWriter(run.journal, run.journal_lock)
    for seq, event in enumerate(hostile_events(), start=1):
        writer.append(encode(Record(seq=seq, time=1e9 + seq, step=seq, timeline=1, event=event)))
    writer.close()


def poison_files(run: RunDirectory) -> None:
    """Put hostile text into the files of a run that are shown."""
    identity = poisoned(run.identity())
    run.write(run.identity_file, msgspec.json.encode(identity))
    (run.reports / "000001-spike.md").write_text(f"# {EVIL}\n\n[{EVIL}](http://x{EVIL})\n")
    Path(run.engine_log).write_text(EVIL)


def faults_of(text: str, *, painted: bool = False) -> list[str]:
    """What a terminal would obey or hide in a text that it gets."""
    return _FORBIDDEN.findall(_STYLES.sub("", text) if painted else text)
