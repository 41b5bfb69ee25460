"""A run read from its folder: what is damaged and what was copied is said, not left out."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec

from fttui.engine.protocol.requests import Beat
from fttui.engine.run.checkpoint_store import MANIFEST, CheckpointStore, CopyList, Manifest
from fttui.engine.run.run_dir import RunDirectory
from fttui.tui.connection.offline import read_rest
from fttui.tui.connection.session.record_merger import RecordMerger
from fttui.tui.screens.tables.checkpoints import CheckpointsScreen
from fttui.tui.view_model.app_state import AppState
from fttui.tui.view_model.connection_port import BeatArrived
from fttui.tui.view_model.link import LinkView
from fttui.tui.widgets.status_panels import _damage
from tests.support.engine_double import EngineDouble, make_run


def ended(tmp_path: Path) -> RunDirectory:
    engine = EngineDouble(make_run(tmp_path))
    engine.start()
    engine.train(5)
    engine.end()
    return engine.run


def last_beat(run: RunDirectory) -> Beat:
    beats = [d.beat for d in read_rest(run, RecordMerger()) if isinstance(d, BeatArrived)]
    return beats[-1]


def test_damage_in_the_middle_is_counted_and_shown(tmp_path: Path) -> None:
    run = ended(tmp_path)
    assert last_beat(run).damaged_bytes == 0
    data = bytearray(run.journal.read_bytes())
    data[len(data) // 2] ^= 0xFF
    run.journal.write_bytes(data)
    beat = last_beat(run)
    assert 0 < beat.damaged_bytes < len(data)
    (line,) = _damage(AppState(link=LinkView(beat=beat)))
    assert f"{beat.damaged_bytes:,} bytes of the journal are damaged" in line.plain


def test_copies_of_checkpoints_are_listed_as_copies(tmp_path: Path) -> None:
    run = ended(tmp_path)
    folder = CheckpointStore(run).make_folder("step-000003")
    manifest = Manifest(
        name="step-000003", step=3, timeline=1, time=1.0, world_size=1, incarnation=1, files={}
    )
    (folder / MANIFEST).write_bytes(msgspec.json.encode(manifest))
    copies = CopyList(run)
    assert copies.current() == {}
    shutil.copytree(folder, run.checkpoints / "my-backup")
    assert copies.current() == {"my-backup": "step-000003"}
    beat = last_beat(run)
    assert beat.checkpoint_copies == {"my-backup": "step-000003"}
    screen: Any = CheckpointsScreen
    (row,) = screen.rows(None, AppState(link=LinkView(beat=beat)), 0.0)
    assert row.key == "my-backup"
    assert "of step-000003" in " ".join(str(part) for part in row.cells)
