"""A model card tells what led to the checkpoint, and nothing that was thrown away or came after."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from fttui.engine.config.load import dump_config
from fttui.engine.config.schema import DataConfig, ModelConfig, RunConfig, TrainConfig
from fttui.engine.export.card import BaseModel, ModelCard, head_notes, without_folders
from fttui.engine.export.lineage import Lineage, lineage_of, read_lineage
from fttui.engine.protocol.benchmarks.result import BenchmarkFinished, BenchmarkScore
from fttui.engine.protocol.codec import encode
from fttui.engine.protocol.events import (
    AnyEvent,
    CheckpointSaved,
    CommandApplied,
    EvalFinished,
    NoteAdded,
    Record,
    RolledBack,
)
from fttui.engine.run.checkpoint_store import Manifest
from fttui.engine.run.journal import MAGIC, frame
from fttui.engine.run.run_dir import RunDirectory
from tests.support.benchmarks import result

MANIFEST = Manifest(
    name="step-000006-t2", step=6, timeline=2, time=0.0, world_size=1, incarnation=1, files={}
)
CONFIG = RunConfig(
    model=ModelConfig(id="/home/me/models/base"),
    data=DataConfig(train="/home/me/secret/train.jsonl", eval="org/set"),
    train=TrainConfig(steps=8),
)


def saved(name: str) -> CheckpointSaved:
    return CheckpointSaved(name=name, size_bytes=1, seconds=0.1)


def applied(command: str, **more: Any) -> CommandApplied:
    return CommandApplied(id=command, command=command, issuer="me", **more)


def journal(*steps: tuple[int, int, AnyEvent]) -> list[Record]:
    return [
        Record(seq=seq, time=0.0, step=step, timeline=timeline, event=event)
        for seq, (step, timeline, event) in enumerate(steps)
    ]


def lineage() -> Lineage:
    back = RolledBack(
        checkpoint="step-000002", from_step=5, to_step=2, old_timeline=1, new_timeline=2
    )
    records = journal(
        (0, 1, EvalFinished(metrics={"loss": 3.0}, seconds=1)),
        (2, 1, saved("step-000002")),
        (3, 1, applied("lr scale 2", old="1", new="2", reason="too | slow")),
        (4, 1, EvalFinished(metrics={"loss": 9.0}, seconds=1)),
        (5, 1, applied("checkpoint", new="step-000005")),
        (2, 2, back),
        (2, 2, NoteAdded(text="half the rate", issuer="you")),
        (6, 2, EvalFinished(metrics={"loss": 2.0, "perplexity": 7.4}, seconds=1)),
        (6, 2, saved("step-000006-t2")),
        (7, 2, EvalFinished(metrics={"loss": 1.0}, seconds=1)),
        (7, 2, applied("lr scale 4", new="4")),
    )
    return lineage_of("run-1", records, MANIFEST)


def test_what_was_rolled_back_counts_as_done_but_not_as_measured() -> None:
    found = lineage()
    assert [step for step, _ in found.evaluations] == [0, 6]
    assert [(one.step, one.what) for one in found.interventions] == [
        (3, "lr scale 2"),
        (2, "note half the rate"),
    ]


@pytest.mark.parametrize(
    ("command", "listed"),
    [
        ("clip p90", True),
        ("rollback last lr=0.5", True),
        ("recover spike-4", True),
        ("skip 2", True),
        ("policy nonfinite halt", True),
        ("pause", False),
        ("gradients", False),
        ("eval", False),
        ("warmup again", False),  # of a later version
    ],
)
def test_the_card_lists_what_changed_the_training(command: str, listed: bool) -> None:
    records = journal((4, 1, applied(command)), (6, 2, saved(MANIFEST.name)))
    found = lineage_of("run-1", records, MANIFEST)
    assert [one.what for one in found.interventions] == ([command] if listed else [])


def card(
    *,
    merged: bool = True,
    base: BaseModel | None = None,
    config: RunConfig = CONFIG,
    vision: bool = False,
) -> str:
    return ModelCard(
        config=config,
        vision=vision,
        config_text=dump_config(without_folders(CONFIG)),
        manifest=MANIFEST,
        lineage=lineage(),
        base=base or BaseModel("base", None, None),
        merged=merged,
        averaged=False,
    ).text()


def test_the_card_compares_before_and_after() -> None:
    assert "| held-out data | step 0 | step 6 |" in card()
    assert "| loss | 3 | 2 |" in card()
    assert "| perplexity |  | 7.4 |" in card()


def test_the_card_escapes_and_names_who_did_it() -> None:
    assert "| 3 (timeline 1) | lr scale 2 | 1 → 2 | me | too \\| slow |" in card()


def test_the_card_gives_no_folder_away() -> None:
    assert "/home/me" not in card()
    assert "| trained on | train.jsonl |" in card()
    assert "| evaluated on | org/set |" in card()


def test_frames_that_are_no_records_are_left_out(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    record = Record(seq=1, time=0.0, step=3, timeline=1, event=NoteAdded(text="kept"))
    run.journal.write_bytes(MAGIC + frame(b"no record") + frame(encode(record)))
    (step,) = read_lineage(run, MANIFEST).interventions
    assert (step.step, step.what) == (3, "note kept")


@pytest.mark.parametrize(
    ("memory", "task", "noted"),
    [("lean", "sft", True), ("lean", "contrastive", False), ("plain", "sft", False)],
)
def test_a_head_in_nf4_is_noted_where_logits_count(memory: Any, task: Any, noted: bool) -> None:
    config = replace(CONFIG, task=task, train=replace(CONFIG.train, memory=memory))
    assert ["NF4" in note for note in head_notes(config)] == [True] * noted


def test_license_and_base_are_named_where_they_are_known() -> None:
    known = card(merged=False, base=BaseModel("org/base", "org/base", "apache-2.0"))
    assert "base_model: org/base\nlicense: apache-2.0\nlibrary_name: peft" in known
    assert "not known" in card()
    assert "base_model" not in card()


def test_an_adapter_is_loaded_onto_the_base_it_was_trained_on() -> None:
    text = card(merged=False)
    assert 'load_in_4bit=True, bnb_4bit_quant_type="nf4"' in text
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    compile(code, "card", "exec")
    assert "4bit" not in card(merged=True).split("## Configuration")[0]


@pytest.mark.parametrize("vision", [False, True])
@pytest.mark.parametrize("quantize", ["nf4", "none"])
def test_an_adapter_after_merge_first_comes_with_the_code_that_merges(
    vision: bool, quantize: Any
) -> None:
    adapter = replace(CONFIG.adapter, start="org/start", merge_first=True)
    config = replace(CONFIG, adapter=adapter, model=replace(CONFIG.model, quantize=quantize))
    (code,) = re.findall(
        r"```python\n(.*?)```", card(merged=False, config=config, vision=vision), re.DOTALL
    )
    compile(code, "card", "exec")
    assert ("AutoModelForImageTextToText" in code) is vision
    assert '"org/start").merge_and_unload()' in code
    assert ("# Training quantized the merged base to nf4." in code) is (quantize == "nf4")


def test_the_card_has_the_benchmarks_of_its_checkpoint_whenever_they_were_measured() -> None:
    scores = {"acc": BenchmarkScore(value=0.75, stderr=0.03, base=0.5)}
    measured = result(step=6, checkpoint=MANIFEST.name, scores=scores)
    records = journal(
        (2, 1, BenchmarkFinished(result=result(step=2, checkpoint="step-000002", scores=scores))),
        (6, 2, saved(MANIFEST.name)),
        (9, 2, EvalFinished(metrics={"loss": 1.0}, seconds=1)),
        (9, 2, BenchmarkFinished(result=measured)),
    )
    found = lineage_of("run-1", records, MANIFEST)
    assert list(found.benchmarks.values()) == [measured]
    assert found.evaluations == []
    text = ModelCard(
        config=CONFIG, config_text="", manifest=MANIFEST, lineage=found,
        base=BaseModel("base", None, None), merged=True, averaged=False,
    ).text()  # fmt: skip
    assert "## Benchmarks" in text
    assert f"| bench.{measured.task}.acc | 0.75 ± 0.03 (base 0.5, +0.25) |" in text
    assert "## Benchmarks" not in card()
