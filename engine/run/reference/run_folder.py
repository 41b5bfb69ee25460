"""The page of the run folder, generated from the structs of its files."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ...core.reports.anomaly_report import AnomalyReport
from ...protocol.data.sample import DataSample
from ..checkpoint_store import FileEntry, Manifest
from ..control_log import ControlEntry
from ..damage import MAX_PAYLOAD_BYTES
from ..identity.content import Content, ContentIdentity
from ..identity.recorded import AcceptedChange, RecordedIdentities, StartedWith
from ..journal import MAGIC
from ..processes.identity import ProcessIdentity
from ..processes.marks import Endpoint, EngineMark, ProcessMark
from ..run_dir import FORMAT, Identity, RunDirectory
from .tables import first_lines, row, struct_section

_INTRO = f"""\
# Run folder

Everything about a run, in plain files: format {FORMAT}, as `format` in `run.json` says. A folder
without the number is from a version before there were formats, and is read as format 1. A higher
format than the installed fttui knows is refused, and the error says how to read it; fields and
files that it does not know are left alone. Only fttui writes here while a run is live; everything
may be read at any time. Generated from `engine/run/` with `python -m fttui.engine.run.reference
docs/reference`.

## Journals

`journal.log` and `control.log` are {len(MAGIC)} bytes `{MAGIC!r}`, then frames of `u32 length |
u32 crc32 | payload`, little-endian, of at most {MAX_PAYLOAD_BYTES // 2**20} MiB. The payload of
the journal is a [record](events.md#record), that of the control journal a
[ControlEntry](#controlentry), in MessagePack. A reader uses the complete frames at the beginning:
after a crash the last one may be incomplete. `control.seq` holds the newest sequence number of
the control journal as 8 bytes, little-endian.

## Files
"""
OTHERS = {
    "desired.json": "The settings in force; a resumed run starts with them.",
    "race.json": "The newest race of the run: its variants, and how far each has trained.",
    "control.lock": "The lock file of the process that may append to the control journal.",
    "exports": "Exported models.",
    "trackers": "What was delivered to each tracker.",
    "tensorboard": "Event files for TensorBoard.",
}
"""Paths that no property of `RunDirectory` names, each with what it holds."""
STRUCTS: dict[str, tuple[type[msgspec.Struct], ...]] = {
    "run.json": (Identity,),
    "identity.json": (RecordedIdentities, StartedWith, AcceptedChange, ContentIdentity, Content),
    "engine.json": (EngineMark, ProcessMark, ProcessIdentity),
    "endpoint.json": (Endpoint,),
    "control.log": (ControlEntry,),
    "checkpoints/NAME/MANIFEST.json": (Manifest, FileEntry),
    "data_sample.json": (DataSample,),
    "reports/ID.json": (AnomalyReport,),
}
"""File → the struct that it holds, and the structs inside."""


def run_folder_page() -> str:
    """Return the Markdown text of docs/reference/run-folder.md."""
    linked = frozenset(struct.__name__ for structs in STRUCTS.values() for struct in structs)
    lines = [_INTRO, "| path | content |", "|---|---|"]
    lines += [row(f"`{path}`", text) for path, text in paths().items()]
    lines.append("")
    for file, structs in STRUCTS.items():
        lines.append(f"## {file}\n")
        for struct in structs:
            lines += struct_section(struct, "###", linked)
    return "\n".join(lines).rstrip() + "\n"


def paths() -> dict[str, str]:
    """Return the paths in a run folder, each with what it holds."""
    run = RunDirectory(Path("RUN"))
    found = {}
    for name, value in vars(RunDirectory).items():
        if isinstance(value, property) and isinstance(path := getattr(run, name), Path):
            found[str(path.relative_to(run.path))] = first_lines(value)
    return found | OTHERS
