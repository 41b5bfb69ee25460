"""Run folders with a scripted journal in them."""

from __future__ import annotations

from pathlib import Path

import msgspec

from fttui.engine.protocol.codec import encode
from fttui.engine.run.journal import MAGIC, frame
from fttui.engine.run.run_dir import Identity, RunDirectory
from tests.support.session_double import Script


def write_run(root: Path, name: str, script: Script, lr: str = "1e-4") -> RunDirectory:
    """A run folder with a script's journal in it."""
    folder = root / name
    folder.mkdir(parents=True)
    run = RunDirectory(folder)
    identity = Identity(
        id=name, name=name, created=script.now, host="h", interpreter="p", config="c.yaml"
    )
    run.identity_file.write_bytes(msgspec.json.encode(identity))
    run.journal.write_bytes(MAGIC + b"".join(frame(encode(r)) for r in script.records))
    run.config.write_text(f"train:\n  lr: {lr}\n  batch: 4\n")
    run.source_config.write_text(f"train:\n  lr: {lr}\n")
    return run
