"""A damaged checkpoint is refused by the name of the damaged file, and nothing changes."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from fttui.engine.config.load import parse_resolved
from fttui.engine.data.batches.collate import collate_pairs, collate_text
from fttui.engine.data.batches.sampler import BatchStream
from fttui.engine.data.dataset import load_examples
from fttui.engine.data.tokens.examples import IGNORED, PackedExample
from fttui.engine.errors import TrainingFailed
from fttui.engine.protocol.events import CommandFailed, StepFinished
from fttui.engine.run.checkpoint_store import MANIFEST
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.train.distributed.agreement import SingleRank
from tests.support.training import Script, new_run, play

TARGET, OTHER = "step-000002", "step-000000"
FILES = (
    "adapter_model.safetensors",
    "ema_model.safetensors",
    "optimizer.pt",
    "rng-0.pt",
    "state.msgpack",
    "adapter_config.json",
)


def _flip(file: Path, other: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0x10
    file.write_bytes(data)


DAMAGES: dict[str, Callable[[Path, Path], object]] = {
    "missing": lambda file, other: file.unlink(),
    "truncated": lambda file, other: file.write_bytes(file.read_bytes()[:-1]),
    "flipped bit": _flip,
    "foreign": lambda file, other: shutil.copy(other, file),
}


def _cases() -> Iterator[tuple[str, str]]:
    """Every file with every damage; a foreign adapter_config.json is the same file."""
    for name in FILES:
        for damage in DAMAGES:
            if (name, damage) != ("adapter_config.json", "foreign"):
                yield name, damage
    yield MANIFEST, "missing"
    yield MANIFEST, "truncated"


def test_every_damage_is_named_and_leaves_the_run_as_it_was(tmp_path: Path) -> None:
    """One damage per step of one run, each followed by an attempt to go back to it."""
    cases = list(_cases())
    sets: dict[str, Any] = {
        "train__steps": len(cases) + 4,
        "train__ema": 0.9,
        "train__accumulate": 1,
        "checkpoint__every": 0,
        "checkpoint__at_start": "true",
    }
    (tmp_path / "straight").mkdir()
    straight = play(new_run(tmp_path / "straight", **sets))
    run = new_run(tmp_path, **sets)
    script = Script({2: ["checkpoint"]})
    for step, case in enumerate(cases, start=3):
        script.calls[step] = _damage(run, *case)
        script.commands[step] = [f"rollback {TARGET}"]
    played = play(run, script)
    reasons = [event.reason for event in played.events(CommandFailed)]
    assert len(reasons) == len(cases)
    for (name, damage), reason in zip(cases, reasons, strict=True):
        named = TARGET in reason if name == MANIFEST else f"{TARGET}: {name} " in reason
        assert named, (name, damage, reason)
    assert played.losses() == straight.losses()
    assert len(played.events(StepFinished)) == len(cases) + 4


def _damage(run: RunDirectory, name: str, damage: str) -> Callable[[], None]:
    def do() -> None:
        """On a fresh copy of the checkpoint as it was written."""
        folder, intact = run.checkpoints / TARGET, run.path / "intact"
        if not intact.exists():
            shutil.copytree(folder, intact)
        shutil.rmtree(folder)
        shutil.copytree(intact, folder)
        DAMAGES[damage](folder / name, run.checkpoints / OTHER / name)

    return do


def test_generators_that_the_collation_draws_from_are_exact_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They must be back before the first batch is fetched, not after it."""
    drawn: list[tuple[float, ...]] = []

    def noisy(*args: Any) -> dict[str, Any]:
        batch = collate_pairs(*args)
        draws = (float(torch.rand(())), float(np.random.rand()), random.random())
        drawn.append(draws)
        batch["input_ids"][:, 0] = 4 + int(sum(draws) * 50)
        return batch

    monkeypatch.setattr("fttui.engine.train.run_data.collate_pairs", noisy)
    for name in ("straight", "resumed", "back"):
        (tmp_path / name).mkdir()
    sets: dict[str, Any] = {"eval__every": 0, "data__eval_fraction": 0}
    straight = play(new_run(tmp_path / "straight", **sets))
    expected, drawn[:] = list(drawn), []
    run = new_run(tmp_path / "resumed", **sets)
    play(run, Script({3: ["stop"]}))
    resumed = play(run, resume="last")
    assert resumed.losses() == straight.losses()
    assert drawn == expected
    drawn.clear()
    back = play(new_run(tmp_path / "back", **sets), Script({6: ["rollback 4"]}))
    assert back.losses() == straight.losses()
    assert drawn[-8:] == expected[-8:], "the four steps after the checkpoint"


def test_ranks_that_come_back_to_different_states_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SingleRank, "gather", lambda self, data: [data, b"other"])
    with pytest.raises(TrainingFailed, match=r"rank 1: 6f746865.*resume"):
        play(new_run(tmp_path), Script({2: ["rollback 0"]}))


def test_a_packed_run_trains_on_its_records_one_by_one(tmp_path: Path) -> None:
    """An untrained adapter adds nothing, so the first loss is that of the base model."""
    sets = {"data__packing": "true", "data__max_length": 96, "train__batch": 2, "train__steps": 1}
    run = new_run(tmp_path, "sft", **sets)
    loss = play(run).losses()[1]
    config = parse_resolved(run.config.read_text())
    model = AutoModelForCausalLM.from_pretrained(config.model.id).eval()
    tokenizer = AutoTokenizer.from_pretrained(config.model.id)
    rows = load_examples(config, tokenizer, lambda label, done, total: None).train
    stream = BatchStream(len(rows), 2, 2)
    chosen = [rows[i] for position in (0, 1) for i in stream.indices(position)]
    documents = [one for row in chosen if isinstance(row, PackedExample) for one in row.documents]
    assert len(documents) > len(chosen) == 4
    total, tokens = 0.0, 0
    for document in documents:
        batch = collate_text([document], 0)
        with torch.no_grad():
            logits = model(input_ids=batch["input_ids"]).logits[0, :-1]
        targets = batch["labels"][0, 1:]
        total += float(torch.nn.functional.cross_entropy(logits, targets, reduction="sum"))
        tokens += int((targets != IGNORED).sum())
    assert loss == pytest.approx(total / tokens, rel=1e-5)
