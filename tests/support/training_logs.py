"""Made-up training logs of many kinds: what runs log, and what loggers do to it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

Record = dict[str, Any]
Course = Callable[[float], float]
"""Level of the loss at a share of the run, from 0 to 1."""

COURSES: dict[str, Course] = {
    "pretraining": lambda t: 2.5 + 8.0 * math.exp(-30 * t) + 0.8 * math.exp(-3 * t),
    "fine-tuning": lambda t: 0.8 + 0.9 * math.exp(-8 * t),
    "epochs": lambda t: 1.4 * 0.7 ** int(5 * t),
    "memorising": lambda t: 1.5 * math.exp(-7 * t),
    "contrastive": lambda t: 0.3 + 4.5 / (1 + 40 * t),
    "preference": lambda t: 0.69 / (1 + 12 * t),
}
"""Losses that are positive and have a level."""
OPTIMIZERS = {"adamw": (0.25, 0.3), "sgd": (0.4, 0.6), "muon": (0.15, 0.1)}
"""Noise of the gradient norm, and its correlation with that of the loss."""


@dataclass(frozen=True)
class Log:
    """A log and what it was made of."""

    source: str
    records: list[Record]
    event: int | None = None
    """Index of the record at which a blow-up was put in; None for a calm log."""


def logs(seed: int, length: int = 800) -> Iterator[Log]:
    """Calm logs of every course, optimizer and way of logging; the same for the same seed."""
    for course, level in COURSES.items():
        for optimizer, (spread, shared) in OPTIMIZERS.items():
            rng = Random(f"{seed} {course} {optimizer}")
            calm = _run(level, spread, shared, length, rng)
            for way, write in LOGGERS.items():
                records = write([dict(record) for record in calm], rng)
                yield Log(f"{course}, {optimizer}, {way}", records)
    for name, make in (("on-policy", _on_policy), ("adversarial", _adversarial)):
        yield Log(name, make(Random(f"{seed} {name}"), length))


def with_blow_up(log: Log, rng: Random, factor: float = 4.0) -> Log:
    """A log in which the loss is a multiple of its level from some record on, for 15 records."""
    at = rng.randrange(max(15, len(log.records) // 10), len(log.records) - 20)
    records = [dict(record) for record in log.records]
    for record in records[at : at + 15]:
        record["loss"] *= factor
    return Log(log.source, records, at)


def _run(level: Course, spread: float, shared: float, length: int, rng: Random) -> list[Record]:
    noise = 0.03 * math.exp(rng.gauss(0, 0.8))
    memory = rng.uniform(0, 0.4)
    x, records = 0.0, []
    for step in range(1, length + 1):
        # Exponential tails, as batches of texts of different difficulty have them.
        fresh = rng.gauss(0, 1) + (rng.expovariate(1) if rng.random() < 0.05 else 0)
        x = memory * x + math.sqrt(1 - memory**2) * fresh
        share = step / length
        norm = math.exp(spread * (shared * x + math.sqrt(1 - shared**2) * rng.gauss(0, 1)))
        warm = min(1.0, step / (0.05 * length))
        records.append({
            "step": step,
            "loss": level(share) * math.exp(noise * x),
            "grad_norm": 0.6 * norm,
            "lr": 1e-4 * warm * (1 - 0.9 * share),
        })  # fmt: skip
    return records


def _every_tenth(records: list[Record], _: Random) -> list[Record]:
    return records[9::10]


def _averaged(records: list[Record], _: Random) -> list[Record]:
    groups = [records[i : i + 5] for i in range(0, len(records) - 4, 5)]
    return [{**group[-1], "loss": sum(r["loss"] for r in group) / 5} for group in groups]


def _dropped(records: list[Record], rng: Random) -> list[Record]:
    return [record for record in records if rng.random() > 0.2]


def _doubled(records: list[Record], _: Random) -> list[Record]:
    return [copy for record in records for copy in (record, dict(record))]


def _resumed(records: list[Record], _: Random) -> list[Record]:
    """The run died and repeats a stretch from a checkpoint; the log holds both."""
    middle = len(records) // 2
    return records[: middle + 40] + [dict(record) for record in records[middle:]]


def _rounded(records: list[Record], _: Random) -> list[Record]:
    for record in records:
        record["loss"] = round(record["loss"], 3)
        record["grad_norm"] = None
    return records


LOGGERS: dict[str, Callable[[list[Record], Random], list[Record]]] = {
    "every step": lambda records, _: records,
    "every tenth": _every_tenth,
    "averaged": _averaged,
    "dropped": _dropped,
    "doubled": _doubled,
    "resumed": _resumed,
    "rounded, no norm": _rounded,
}


def _on_policy(rng: Random, length: int) -> list[Record]:
    """Losses begin at exactly 0, change sign and grow with the distance from the old policy."""
    records = []
    for step in range(1, length + 1):
        size = 0.002 * min(1.0, step / 60)
        loss = 0.0 if step <= 2 else rng.gauss(size, 3 * size)
        norm = 0.1 * math.exp(rng.gauss(0, 0.4))
        records.append({"step": step, "loss": loss, "grad_norm": norm, "lr": 1e-6})
    return records


def _adversarial(rng: Random, length: int) -> list[Record]:
    """A loss that swings slowly around a level that nothing lowers."""
    return [
        {
            "step": step,
            "loss": 1.2 * math.exp(0.25 * math.sin(step / 25) + rng.gauss(0, 0.12)),
            "grad_norm": math.exp(rng.gauss(0, 0.3)),
            "lr": 2e-4,
        }
        for step in range(1, length + 1)
    ]
