"""Choose settings that fit data, model and card; the person may change them afterwards."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from ..memory.architecture import Architecture
from ..memory.fit import fit
from ..memory.hardware import Hardware
from ..schema import RunConfig

GIB = 2**30
SEQUENCES = 16
"""Records of an optimizer step, on all micro-batches together."""
PAIRS = 64
"""Pairs of an optimizer step of contrastive training, which are each other's negatives."""
_STEPS_PER_EPOCH = 4
"""Optimizer steps that few records are divided into, at least, where they suffice for it."""
_CHARACTERS_PER_TOKEN = 3.0
"""Fewer than in English prose, so that code and other languages are not cut."""
_SHORTEST, _LONGEST = 128, 4096
_CHAT_MODELS = (
    (17.0, "Qwen/Qwen3-8B"),
    (9.0, "Qwen/Qwen3-4B-Instruct-2507"),
    (4.5, "Qwen/Qwen3-1.7B"),
    (0.0, "Qwen/Qwen3-0.6B"),
)
"""Free GiB from which a model is suggested; it is trained in NF4."""
_EMBEDDERS = ((4.5, "Qwen/Qwen2.5-1.5B"), (0.0, "Qwen/Qwen2.5-0.5B"))
_ON_CPU = "HuggingFaceTB/SmolLM2-135M-Instruct"
_LEARNING_RATES = {"sft": 2e-4, "dpo": 2e-5, "kto": 2e-5, "contrastive": 2e-4, "reward": 1e-4}


@dataclass(frozen=True)
class DataFacts:
    """Number, task and lengths of the records of a source, and how to read them."""

    records: int
    task: str
    source: str
    """The value of `data.train`."""
    contrastive: Mapping[str, Any]
    """Keys of the section `contrastive`; empty for other tasks."""
    characters_p95: int | None
    """Length that 95 % of the records do not exceed; None if it is not known."""
    tokens_p95: int | None = None
    """The same in tokens of the chosen model; None if it is not known."""
    tokens_most: int | None = None
    """Tokens of the longest record; None if it is not known."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """The value of `data.columns`."""
    roles: Mapping[str, str] = field(default_factory=dict)
    """The value of `data.roles`."""


@dataclass(frozen=True)
class Size:
    """How many tokens and records are computed at a time."""

    max_length: int
    batch: int
    accumulate: int


def suggested_model(task: str, hardware: Hardware) -> str:
    """Return the Hub id of the largest model of a short list that the card trains with room."""
    if hardware.kind == "cpu":
        return _ON_CPU
    free_gib = min(device.free_bytes for device in hardware.devices) / GIB
    models = _EMBEDDERS if task == "contrastive" else _CHAT_MODELS
    return next(name for least, name in models if free_gib >= least)


def lengths(facts: DataFacts) -> Iterator[int]:
    """Yield the tokens per sequence to try, the best first, between 128 and 4,096.

    The first one holds the longest record, the next one 95 % of the records, and each further one
    is half of the one before. Lengths that are not known are skipped; without any it is 1,024.
    """
    likely = facts.tokens_p95
    if likely is None and facts.characters_p95 is not None:
        likely = round(facts.characters_p95 / _CHARACTERS_PER_TOKEN)
    likely = 1024 if likely is None else likely
    if facts.tokens_most is not None and facts.tokens_most > likely:
        yield _rounded(facts.tokens_most)
    length = _rounded(likely)
    while length >= _SHORTEST:
        yield length
        length //= 2


def _rounded(tokens: int) -> int:
    return min(_LONGEST, max(_SHORTEST, -(-tokens // 64) * 64))


def eval_share(records: int) -> float:
    """Return the share of the records to hold out for evaluations: more of few records."""
    return 0.02 if records >= 5_000 else 0.05 if records >= 400 else 0.1


def together(facts: DataFacts) -> int:
    """Return the records of an optimizer step: 16 or 64, or a smaller power of two for few records.

    Pairs that are compared with each other are at least 2.
    """
    usual, fewest = (PAIRS, 2) if facts.task == "contrastive" else (SEQUENCES, 1)
    trained = facts.records - max(1, round(facts.records * eval_share(facts.records)))
    while usual > fewest and usual * _STEPS_PER_EPOCH > trained:
        usual //= 2
    return usual


def sizes(facts: DataFacts) -> Iterator[Size]:
    """Yield sizes to try, the best first: the whole length in large micro-batches."""
    most = together(facts)
    for length in lengths(facts):
        for batch in (16, 8, 4, 2, 1):
            if batch <= most:
                yield Size(length, batch, most // batch)


def likely_size(facts: DataFacts) -> Size:
    """Return the size for a model whose memory cannot be estimated: one record at a time."""
    length = next(lengths(dataclasses.replace(facts, tokens_most=None)))
    return Size(length, 1, together(facts))


def fitting_size(
    facts: DataFacts, config: RunConfig, architecture: Architecture, hardware: Hardware
) -> Size | None:
    """Return the first size whose memory fits even by the high estimate; None if none does.

    Where the run chooses its micro-batch itself, the size has the one that it would choose.
    """
    if config.train.batch == "auto":
        return _divided_size(facts, config, architecture, hardware)
    for one in sizes(facts):
        found = fit(sized(config, one), architecture, hardware)
        if found.fits and found.estimate.high <= found.free_bytes:
            return one
    return None


def _divided_size(
    facts: DataFacts, config: RunConfig, architecture: Architecture, hardware: Hardware
) -> Size | None:
    for length in lengths(facts):
        data = replace(config.data, max_length=length)
        found = fit(replace(config, data=data), architecture, hardware)
        if found.fits and found.estimate.high <= found.free_bytes:
            train = found.config.train
            return Size(length, train.micro_batch_size, train.accumulation)
    return None


def sized(config: RunConfig, size: Size) -> RunConfig:
    """Return the configuration with another size."""
    data = replace(config.data, max_length=size.max_length)
    parts = {"batch": size.batch, "accumulate": size.accumulate, "sequences_per_update": None}
    train = replace(config.train, **parts)
    return replace(config, data=data, train=train)


def epochs(records: int) -> int:
    """Return the passes over the data: more for few records."""
    return 3 if records < 2_000 else 2 if records < 20_000 else 1


def interval(facts: DataFacts, size: Size) -> int:
    """Return the steps between evaluations: about ten in the run, at most every 100 steps."""
    per_step = size.batch * size.accumulate
    steps = max(1, facts.records * epochs(facts.records) // per_step)
    return max(1, min(100, steps // 10))


def learning_rate(task: str) -> float:
    """Return a usual peak learning rate of LoRA for a task."""
    return _LEARNING_RATES[task]
