"""Runs the real engine loop in this process on a tiny model, with commands at chosen steps.

A command is appended to the control journal at the moment its step is journaled, so that tests
need no waiting and no luck.
"""

from __future__ import annotations

import gc
import json
import random
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch

from fttui.engine.config.load import load_config
from fttui.engine.config.tasks import SCORED_KINDS
from fttui.engine.core.lr_range import LrRange
from fttui.engine.protocol.events import (
    Event,
    RunStarted,
)
from fttui.engine.run.control_log import ControlWriter
from fttui.engine.run.journal_summary import summarize_journal
from fttui.engine.run.run_dir import RunDirectory, create_run
from fttui.engine.train.distributed.place import RankPlace
from fttui.engine.train.journal_writer import JournalWriter
from fttui.engine.train.patches import compile_deferred
from fttui.engine.train.session_start import SessionStart
from fttui.engine.train.signals import StopSignals
from fttui.tui.cli.preflight.start_adapter import with_start_adapter

from .played import Played as Played
from .played import Script as Script
from .played import ScriptedEventLog as ScriptedEventLog
from .played import read_records as read_records
from .tiny import tiny_llama

with compile_deferred():  # as the engine does
    from fttui.engine.train.session import train

# Every training run collects garbage; the training stack itself, a million objects, is none.
gc.freeze()

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa"]

E = TypeVar("E", bound=Event)


def write_pairs(path: Path, count: int = 48, seed: int = 0) -> Path:
    """Pairs that a tiny model can learn: a word and a sentence with it."""
    rng = random.Random(seed)
    rows = []
    for number in range(count):
        word = WORDS[number % len(WORDS)]
        filler = " ".join(rng.choice(WORDS) for _ in range(4))
        rows.append({"anchor": f"{word} {number}", "positive": f"{word} {filler} {number}"})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_scored_pairs(path: Path, count: int = 48, seed: int = 0) -> Path:
    """Two sentences with a score from 0 to 5: the number of words that they share."""
    rng = random.Random(seed)
    rows = []
    for number in range(count):
        words, shared = rng.sample(WORDS, len(WORDS)), number % 6
        others = [*words[:shared], *words[5 : 10 - shared]]
        texts = {"sentence1": " ".join(words[:5]), "sentence2": " ".join(others)}
        rows.append({**texts, "score": float(shared)})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_texts(path: Path, count: int = 48, seed: int = 0) -> Path:
    """Prompt/completion rows of varied length."""
    rng = random.Random(seed)
    rows = [
        {
            "prompt": f"say {number}",
            "completion": " ".join(rng.choice(WORDS) for _ in range(2 + number % 7)),
        }
        for number in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_preferences(path: Path, count: int = 48, seed: int = 0) -> Path:
    """Prompts with a completion that repeats their word and one that does not."""
    rng = random.Random(seed)
    rows = []
    for number in range(count):
        word, other = rng.sample(WORDS, 2)
        rows.append({"prompt": f"{word} {number}:", "chosen": f" {word}", "rejected": f" {other}"})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_graded(path: Path, count: int = 48, seed: int = 0) -> Path:
    """Answers of which the good ones have words from the first half of the list."""
    rng = random.Random(seed)
    rows = []
    for number in range(count):
        sides = (" ".join(rng.choices(half, k=3)) for half in (WORDS[:5], WORDS[5:]))
        rows.append(
            dict(zip(("prompt", "chosen", "rejected"), (f"{number}: ", *sides), strict=True))
        )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_ratings(path: Path, count: int = 48, seed: int = 0) -> Path:
    """Prompts with one completion each, some wanted."""
    rng = random.Random(seed)
    rows = []
    for number in range(count):
        word, other = rng.sample(WORDS, 2)
        said = word if number % 3 else other
        label = bool(number % 3)
        rows.append({"prompt": f"{word} {number}:", "completion": f" {said}", "label": label})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


_WRITERS: dict[str, tuple[str, Callable[[Path], Path]]] = {
    "contrastive": ("pairs.jsonl", write_pairs),
    "dpo": ("preferences.jsonl", write_preferences),
    "kto": ("ratings.jsonl", write_ratings),
    "reward": ("graded.jsonl", write_graded),
}


def write_config(
    folder: Path, task: str = "contrastive", **overrides: object
) -> tuple[Path, list[str]]:
    """A config for a tiny run and the `--set` overrides on top of it.

    Activations are kept: computing them again costs a quarter of a tiny run and changes no number,
    as the tests of exact paths and of whole layers show.
    """
    file, write = _WRITERS.get(task, ("texts.jsonl", write_texts))
    kind = "infonce" if task == "contrastive" else "off"
    if overrides.get("contrastive__kind") in SCORED_KINDS:
        file, write = "scored.jsonl", write_scored_pairs
    data = write(folder / file)
    path = folder / "tiny.yaml"
    path.write_text(
        f"""
name: tiny
task: {task}
model: {{id: {tiny_llama(folder)}, quantize: none}}
adapter: {{r: 4, alpha: 8, dropout: 0.1}}
data: {{train: {data}, max_length: 32, eval_fraction: 0.2, accept: [all]}}
contrastive: {{kind: {kind}, weight: 0.5, hard_negatives: 0}}
train: {{steps: 8, batch: 4, accumulate: 2, lr: 0.01, schedule: linear, warmup: 2,
        activation_checkpointing: false}}
checkpoint: {{every: 4, keep: 10}}
hub: {{idle_s: 5}}
"""
    )
    return path, [f"{key.replace('__', '.')}={value}" for key, value in overrides.items()]


def new_run(folder: Path, task: str = "contrastive", **overrides: Any) -> RunDirectory:
    """A run directory for a tiny run."""
    path, sets = write_config(folder, task, **overrides)
    loaded = load_config(path, sets)
    loaded = with_start_adapter(loaded, str(folder / "runs"), str(path), lambda line: None)
    return create_run(
        folder / "runs",
        name="tiny",
        config=path,
        source=loaded.source,
        resolved=loaded.resolved,
        overrides=sets,
        version="0",
    )


def play(
    run: RunDirectory,
    script: Script | None = None,
    resume: str | None = None,
    device: str = "cpu",
    place: RankPlace | None = None,
    profile_steps: int = 0,
    lr_range: LrRange | None = None,
    signals: StopSignals | None = None,
    name: str = "tiny",
    accept_changed: frozenset[str] = frozenset(),
) -> Played:
    """Train a run to its end in this process, alone or as one of several ranks."""
    torch.set_num_threads(1)
    place = place or RankPlace(0, 1, torch.device(device))
    journal_writer = JournalWriter(run, lambda run: None) if place.rank == 0 else None
    control = ControlWriter(run) if place.rank == 0 else None
    history = summarize_journal(journal_writer.recovered if journal_writer else ())
    event_log = ScriptedEventLog(journal_writer, control, script or Script(), history.timeline)
    started = RunStarted(
        name=name,
        incarnation=history.status.incarnation + 1,
        pid=0,
        host=socket.gethostname(),
        world_size=place.world_size,
        task="",
        model=name,
        total_steps=0,
        micro_batch_size=4,
        accumulation=2,
    )
    try:
        before = control.last_seq if control else 0
        for text in (script or Script()).early:
            event_log.send(text)
        start = SessionStart(
            run,
            history,
            resume,
            before,
            profile_steps=profile_steps,
            lr_range=lr_range,
            accept_changed=accept_changed,
            used=history.used,
        )
        outcome = train(start, started, place, event_log, signals or StopSignals())
    finally:
        if journal_writer and control:
            journal_writer.close()
            control.close()
    return Played(run, outcome, read_records(run) if journal_writer else [])
