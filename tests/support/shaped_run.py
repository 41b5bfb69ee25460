"""Runs over random models in published shapes, for `tests.support.random_engine`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from fttui.engine.config.load import load_config
from fttui.engine.protocol.codec import decode_record
from fttui.engine.protocol.events import Record, RunEnded
from fttui.engine.run.journal import FrameReader
from fttui.engine.run.run_dir import RunDirectory, create_run

PROFILED_AFTER = "FTTUI_PROFILED_AFTER"
"""Names the variable with the number of steps before one that is profiled."""


@dataclass(frozen=True)
class Shaped:
    """What is trained, and how."""

    shape: str
    """One of `tests.support.shapes.SHAPES`."""
    length: int
    """Tokens per row."""
    accumulate: int
    ranks: int
    fast: str
    steps: int
    nf4: bool
    sets: tuple[str, ...] = ()
    """Further settings, as for `--set`."""


def shaped_run(folder: Path, shaped: Shaped) -> RunDirectory:
    """A run without checkpoints on the way; its texts fill the length."""
    folder.mkdir()
    rows = range(shaped.ranks * shaped.accumulate * min(shaped.steps + 1, 32))
    texts = (" ".join(f"{n * 7 + i:04d}" for i in range(shaped.length // 4)) for n in rows)
    data = folder / "texts.jsonl"
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    config = folder / "shaped.yaml"
    config.write_text(
        f"""
name: shaped
task: sft
model: {{id: {shaped.shape}, quantize: {"nf4" if shaped.nf4 else "none"}}}
data: {{train: {data}, max_length: {shaped.length}, eval_fraction: 0.01, accept: [all]}}
train: {{steps: {shaped.steps}, batch: 1, accumulate: {shaped.accumulate}, fast: "{shaped.fast}",
        devices: {shaped.ranks}, activation_checkpointing: true}}
checkpoint: {{every: 0, at_start: false}}
hub: {{idle_s: 1}}
"""
    )
    loaded = load_config(config, shaped.sets)
    return create_run(
        folder / "runs", name="shaped", config=config, source=loaded.source,
        resolved=loaded.resolved, overrides=list(shaped.sets), version="0",
    )  # fmt: skip


def records_of(run: RunDirectory) -> list[Record]:
    """The journal of a run that has ended well.

    Raises:
        RuntimeError: it has not.
    """
    found = [decode_record(payload) for payload in FrameReader(run.journal)]
    records = [record for record in found if record is not None]
    ended = [r.event for r in records if isinstance(r.event, RunEnded)]
    if not ended or ended[-1].exit_code:
        log = run.engine_log.read_text()[-3000:]
        raise RuntimeError(f"{ended[-1].error if ended else 'no end'}\n{log}")
    return records
