"""Holding a run: what waits, what works meanwhile, and lending the GPU out."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fttui.engine.protocol.events import CommandApplied, CommandFailed, LogEmitted
from fttui.engine.protocol.states import RunState
from fttui.engine.train.trainers.device_offload import DeviceOffload
from tests.support.matrix import in_part
from tests.support.training import Script, new_run, play

RESUMED = {RunState.PAUSED: ["resume"]}


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Where a plain run and one that is held can live."""
    plain, held = tmp_path / "plain", tmp_path / "held"
    plain.mkdir()
    held.mkdir()
    return plain, held


def test_a_pause_that_lends_the_gpu_out_changes_nothing(folders: tuple[Path, Path]) -> None:
    plain = play(new_run(folders[0]))
    script = Script({3: ["pause release"]}, states=dict(RESUMED))
    held = play(new_run(folders[1]), script)
    assert held.losses() == plain.losses()
    assert [e.new for e in held.events(CommandApplied)] == [
        "paused, GPU memory released",
        "running",
    ]


@pytest.mark.parametrize("optimizer", in_part(["adamw", "adamw_8bit"], ["adamw_8bit"]))
def test_what_is_lent_is_gone_and_returns_bit_for_bit(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, optimizer: str
) -> None:
    """The host stands in for the device; only what was mapped from a file cannot be emptied."""
    lent: list[tuple[int, int]] = []

    def release(offload: DeviceOffload) -> int:
        lent.append((offload.empty(), sum(s.nbytes() for s in offload._storages())))
        return lent[-1][0]

    options = {"model__quantize": "nf4", "train__ema": 0.9, "train__optimizer": optimizer}
    plain = play(new_run(folders[0], "sft", **options))
    monkeypatch.setattr(DeviceOffload, "release", release)
    script = Script({3: ["pause release"]}, on_log={"memory released": ["eval", "resume"]})
    held = play(new_run(folders[1], "sft", **options), script)
    assert held.losses() == plain.losses()
    freed, left = lent[0]
    assert freed > 80_000
    assert left == 0


def taken_once(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Somebody else has the memory the first time it is wanted back; counts how often it was."""
    asked: list[int] = []

    def reclaim(offload: DeviceOffload) -> None:
        asked.append(len(asked))
        if len(asked) == 1:
            raise torch.OutOfMemoryError("2.00 GiB wanted, 1.00 GiB free")

    monkeypatch.setattr(DeviceOffload, "reclaim", reclaim)
    return asked


@pytest.mark.parametrize("first", in_part(["resume", "checkpoint"], ["checkpoint"]))
def test_the_run_stays_paused_while_others_have_the_memory(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    asked = taken_once(monkeypatch)
    plain = play(new_run(folders[0]))
    script = Script({3: ["pause release"]}, states={RunState.PAUSED: [first]})
    script.on_log["taken back"] = ["resume"]
    held = play(new_run(folders[1]), script)
    assert len(asked) == 2
    assert held.losses() == plain.losses()
    told = [e.text for e in held.events(LogEmitted) if "taken back" in e.text]
    assert len(told) == 1
    assert "1.00 GiB free" in told[0]
    failed = [e.command for e in held.events(CommandFailed)]
    assert failed == (["checkpoint"] if first == "checkpoint" else [])
