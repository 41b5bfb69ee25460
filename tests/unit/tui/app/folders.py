"""Run folders with a scripted journal in them."""

from __future__ import annotations

from pathlib import Path

import msgspec

from fttui.engine.protocol.codec import encode
from fttui.engine.protocol.data.sample import SampleRecord, SampleSpan, SampleText
from fttui.engine.run.data_sample import write_sample
from fttui.engine.run.journal import MAGIC, frame
from fttui.engine.run.run_dir import Identity, RunDirectory
from tests.support.session_double import Script

_ASKED = SampleSpan("<|im_start|>user\nWhat is 2 + 2?<|im_end|>\n<|im_start|>assistant\n", False)
_ANSWER = SampleText(
    name="text",
    spans=[_ASKED, SampleSpan("It is\n  4.<|im_end|>", True), SampleSpan("\n", False)],
    tokens=29,
    learned=9,
)
_DROPPED = "dropped: no target token is left"
SAMPLE = [
    SampleRecord(id="chat:1", place="chat.jsonl:1", texts=[_ANSWER]),
    SampleRecord(id="chat:2", place="chat.jsonl:2", texts=[], notes=[_DROPPED]),
]
"""The sample of the data in such a folder."""


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
    write_sample(run, SAMPLE)
    return run
