"""Write a first configuration as YAML, with a comment beside every key."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from shlex import quote
from typing import Any

import yaml

from ..memory.hardware import Hardware
from ..yaml_tree import parse_scalar
from .choices import DataFacts, Size, epochs, eval_share, interval, learning_rate

_COMMENT_COLUMN = 34
_WORD = re.compile(r"[A-Za-z][\w./-]*")
_LOSS_OF = {
    "sft": "next-token loss on the answers",
    "dpo": "chosen answers become more likely than rejected ones",
    "kto": "good answers become more likely, bad ones less",
    "reward": "a score, higher for chosen answers than for rejected ones",
    "contrastive": "texts that belong together get similar embeddings",
}


@dataclass(frozen=True)
class First:
    """Everything that a first configuration is written from."""

    name: str
    model: str
    facts: DataFacts
    size: Size
    hardware: Hardware
    estimated: bool
    """Whether memory was estimated with the sizes of the model."""


def first_configuration(first: First, path: str) -> str:
    """Return the YAML of a first configuration.

    Args:
        first: What was chosen.
        path: The file it is written to, for the commands in its head.
    """
    facts, size = first.facts, first.size
    card = _card(first.hardware)
    lines = [
        "# Written by fttui init.",
        "#",
        f"#   Check:  fttui check {quote(path)} --show 3   (memory, records as trained on)",
        f"#   Train:  fttui run {quote(path)}",
        "#   Keys:   docs/configuration.md",
    ]
    for section, rows in _sections(first):
        lines += ["", f"{section}:"] if section else [""]
        lines += [_line(key, value, note, "  " * bool(section)) for key, value, note in rows]
    fits = "chosen for" if first.estimated else "not compared with the memory of"
    lines[1:1] = [
        f"# {facts.records:,} records; {size.max_length:,} tokens and micro-batches of "
        f"{size.batch} were {fits} {card}."
    ]
    return "\n".join(lines) + "\n"


Rows = list[tuple[str, Any, str]]


def _sections(first: First) -> Iterator[tuple[str, Rows]]:
    facts, size = first.facts, first.size
    cuda = first.hardware.kind == "cuda"
    every = interval(facts, size)
    yield (
        "",
        [
            ("name", first.name, "runs are named after it"),
            ("task", facts.task, _LOSS_OF[facts.task]),
        ],
    )
    yield (
        "model",
        [
            ("id", first.model, "a Hub id or a local folder"),
            ("quantize", "nf4" if cuda else "none", "nf4: base weights in 4 bits"),
        ],
    )
    yield (
        "adapter",
        [
            ("r", 16, "rank of LoRA; higher values need more memory"),
            ("alpha", 32, "scaling is alpha / r"),
        ],
    )
    yield ("data", _data_rows(facts, size))
    if facts.contrastive:
        rows = [(key, value, "the loss") for key, value in facts.contrastive.items()]
        yield ("contrastive", [*rows, ("ce_weight", 0.0, "above 0 adds the next-token loss")])
    yield (
        "train",
        [
            ("epochs", epochs(facts.records), "passes over the data"),
            *_batch_rows(facts, size),
            ("lr", learning_rate(facts.task), "peak learning rate; change it live with: lr scale"),
            ("warmup", 0.03, "share of the steps"),
            ("optimizer", "paged_adamw_8bit" if cuda else "adamw", "docs/configuration.md: others"),
        ],
    )
    yield ("eval", [("every", every, "steps")])
    yield ("checkpoint", [("every", every, "steps"), ("keep", 3, "older ones are removed")])


def _batch_rows(facts: DataFacts, size: Size) -> Rows:
    """Return the records of an optimizer step: contrastive ones depend on their micro-batch."""
    together = size.batch * size.accumulate
    if facts.task == "contrastive":
        return [
            ("batch", size.batch, "records per micro-batch"),
            ("accumulate", size.accumulate, f"micro-batches per step: {together} in all"),
        ]
    return [
        ("batch", "auto", f"micro-batches as memory allows: {size.batch} here"),
        ("sequences_per_update", together, "records per optimizer step"),
    ]


def _data_rows(facts: DataFacts, size: Size) -> Rows:
    note = "tokens; longer records are truncated, and counted"
    if facts.tokens_p95 is None and facts.characters_p95 is not None:
        note = "tokens, guessed from the characters; longer records are truncated, and counted"
    elif facts.tokens_most is not None and size.max_length >= facts.tokens_most:
        note = f"tokens; the longest record has {facts.tokens_most:,}"
    elif facts.tokens_p95 is not None and size.max_length >= facts.tokens_p95:
        note = f"tokens; 95 % of the records have at most {facts.tokens_p95:,}; others are cut"
    return [
        ("train", facts.source, ""),
        *([("columns", dict(facts.columns), "field: column")] if facts.columns else []),
        *([("roles", dict(facts.roles), "name in the file: role")] if facts.roles else []),
        ("eval_fraction", eval_share(facts.records), "held out of train for evaluations"),
        ("max_length", size.max_length, note),
    ]


def _card(hardware: Hardware) -> str:
    if hardware.kind == "cpu":
        return "the CPU"
    free_gib = min(device.free_bytes for device in hardware.devices) / 2**30
    return f"{free_gib:.1f} GiB of free GPU memory"


def _line(key: str, value: Any, note: str, indent: str) -> str:
    """Return a line; a text that is not a plain word is quoted."""
    plain = isinstance(value, str) and _WORD.fullmatch(value) and parse_scalar(value) == value
    if isinstance(value, dict):
        text = json.dumps(value, ensure_ascii=False)
    elif plain or not isinstance(value, str):
        text = str(value)
    else:
        dumped = yaml.dump(value, default_style='"', allow_unicode=True, width=10**9)
        text = dumped.rstrip("\n")
    entry = f"{indent}{key}: {text}"
    return f"{entry:<{_COMMENT_COLUMN - 2}}  # {note}" if note else entry
