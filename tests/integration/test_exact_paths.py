"""Four ways to step 8 end in one state, to the last bit: straight, rolled back, resumed, killed.

Dropout, accumulation, shuffling and changed settings are on, and activations are computed again.
The paths cross an epoch's end and begin in its middle. Compared are the losses, and every file of
the last checkpoint that holds adapter, average, optimizer, schedule and generators, with the
settings and what is watched.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from fttui.engine.run.checkpoint_store import CheckpointStore
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.train.checkpoint.training_state import read_counters
from fttui.engine.train.distributed.place import RankPlace
from tests.support.ranks import in_ranks
from tests.support.training import Played, Script, new_run, play, read_records

pytestmark = pytest.mark.timeout(300)
AGAIN = {"train__activation_checkpointing": "true"}
PACKED = {"data__packing": "true", "data__max_length": 96, "train__batch": 2, **AGAIN}
PATHS = ("straight", "rolled back", "resumed", "killed")
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "contrastive": ("contrastive", {"train__ema": 0.9, "train__optimizer": "adamw", **AGAIN}),
    "sft": ("sft", {"train__optimizer": "adafactor"}),
    "packed": ("sft", {**PACKED, "train__ema": 0.9, "train__optimizer": "lion"}),
    "sharded": ("sft", {"train__strategy": "fsdp", "train__ema": 0.9, **AGAIN}),
    "sharded NF4": ("sft", {"train__strategy": "fsdp", "model__quantize": "nf4", **AGAIN}),
    "sharded whole": ("sft", {"train__strategy": "fsdp", "adapter": "none", "train__lr": 0.001}),
}
SHARDED = ("sharded", "sharded whole", "sharded NF4")
TIMED = ("throughput", "memory", "straggler")
"""Detectors of what is measured anew by every process: the clock, the machine."""
SETTINGS = ["lr scale 0.5", "clip p90", "policy nonfinite halt"]


def _script(**more: Any) -> Script:
    commands = {2: list(SETTINGS), **more.pop("commands", {})}
    return Script(commands=commands, **more)


def _new(folder: Path, kind: str, world_size: int) -> RunDirectory:
    task, sets = KINDS[kind]
    folder.mkdir(parents=True)
    batch = int(sets.get("train__batch", 4)) // world_size
    return new_run(folder, task, **{**sets, "train__batch": batch, "train__devices": world_size})


def _live_paths(place: RankPlace, runs: dict[tuple[str, str], RunDirectory]) -> None:
    """Every path that needs no process to die."""
    for (_, path), run in runs.items():
        if path == "straight":
            play(run, _script(), place=place)
        elif path == "rolled back":
            play(run, _script(commands={6: ["rollback 4"]}), place=place)
        elif path == "resumed":
            play(run, _script(commands={3: ["stop"]}), place=place)
            play(run, resume="last", place=place)


def _die_at_step_6(place: RankPlace, run: RunDirectory) -> None:
    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    play(run, _script(calls={6: die}), place=place)


def _go_on(place: RankPlace, runs: list[RunDirectory]) -> None:
    for run in runs:
        play(run, resume="last", place=place)


@pytest.fixture(
    scope="module",
    params=[
        (1, ("contrastive",)),
        (2, ("packed",)),
        pytest.param((1, ("packed", "sft")), marks=pytest.mark.long),
        pytest.param((2, ("contrastive", "sft")), marks=pytest.mark.long),
        pytest.param((2, SHARDED), marks=pytest.mark.long),
    ],
    ids=["1 rank", "2 ranks", "1 rank, other kinds", "2 ranks, other kinds", "2 ranks, sharded"],
)
def runs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, str], RunDirectory]:
    """Every kind of run on every path, in few processes; part of the kinds on two ranks."""
    world_size: int = request.param[0]
    kinds: tuple[str, ...] = request.param[1]
    folder = tmp_path_factory.mktemp(f"ranks-{world_size}")
    made = {
        (kind, path): _new(folder / kind / path.replace(" ", "-"), kind, world_size)
        for kind in kinds
        for path in PATHS
        if kind == kinds[0] or path != "resumed"
    }
    live = {key: run for key, run in made.items() if key[1] != "killed"}
    killed = [run for key, run in made.items() if key[1] == "killed"]
    if world_size == 1:
        _live_paths(RankPlace(0, 1, _cpu()), live)
    else:
        assert in_ranks(world_size, _live_paths, live) == [0] * world_size
    for run in killed:
        codes = in_ranks(world_size, _die_at_step_6, run)
        assert -signal.SIGKILL in codes
    assert in_ranks(world_size, _go_on, killed) == [0] * world_size
    return made


def _cpu() -> Any:
    import torch

    return torch.device("cpu")


@pytest.mark.parametrize("path", ["resumed", "rolled back", "killed"])
def test_every_path_ends_in_the_same_state(
    runs: dict[tuple[str, str], RunDirectory], path: str
) -> None:
    kinds = [kind for kind, other in runs if other == path]
    assert kinds
    for kind in kinds:
        straight, other = runs[kind, "straight"], runs[kind, path]
        expected = _losses(straight)
        assert list(expected) == list(range(1, 9)), kind
        assert _losses(other) == expected, kind
        assert _final(other) == _final(straight), kind


def _losses(run: RunDirectory) -> dict[int, float]:
    played = Played(run, None, read_records(run))  # type: ignore[arg-type]  # it ended long ago
    newest = max(record.timeline for record in played.records)
    return {**played.losses(1), **played.losses(newest)}


def _final(run: RunDirectory) -> dict[str, Any]:
    """Hashes of the files of the last checkpoint, and its plain part but for what is timed."""
    ledger = CheckpointStore(run)
    last = ledger.all()[-1]
    assert last.step == 8
    counters = read_counters(ledger.verify(last))
    apart = ("detector", "autopilot", "recoveries")  # a rollback does not undo what was tried
    watch = {name: found for name, found in counters.watch.items() if name not in apart}
    for name, found in counters.watch["detector"].items():
        if name not in TIMED:
            watch[f"detector.{name}"] = found
    aside = ("state.msgpack", "adapter_config.json")  # times, and the folder of the model
    hashes = {name: file.sha256 for name, file in last.files.items() if name not in aside}
    assert any(name.startswith("rng-") for name in hashes)
    return {**hashes, "desired": counters.desired, "position": counters.position, "watch": watch}


def test_settings_and_average_were_really_there(
    runs: dict[tuple[str, str], RunDirectory],
) -> None:
    first = next(kind for kind, _ in runs)
    final = _final(runs[first, "straight"])
    assert (final["desired"].lr_scale, final["desired"].clip_percentile) == (0.5, 90.0)
    assert final["ema_model.safetensors"] != final["adapter_model.safetensors"]
