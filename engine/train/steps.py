"""One optimizer step as it is measured: losses, counts and times of this rank, then of all."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .agree import Agreement


@dataclass
class StepTally:
    """What one rank collects during one step."""

    started: float = field(default_factory=time.perf_counter)
    data_s: float = 0.0
    compute_s: float = 0.0
    optimizer_s: float = 0.0
    tokens: int = 0
    samples: int = 0
    losses: list[Tensor] = field(default_factory=list)
    parts: dict[str, Tensor] = field(default_factory=dict)

    @contextmanager
    def time(self, what: str) -> Iterator[None]:
        """Add the time spent inside to `<what>_s`."""
        started = time.perf_counter()
        try:
            yield
        finally:
            name = f"{what}_s"
            setattr(self, name, getattr(self, name) + time.perf_counter() - started)

    def count(self, batch: dict[str, Any]) -> None:
        """Count a micro-batch's real tokens and its samples; called before it leaves the host."""
        self.tokens += int(batch["attention_mask"].sum())
        self.samples += int(batch.get("pair_count", len(batch["input_ids"])))

    def add_parts(self, **parts: Tensor) -> None:
        """Add shares of the step's loss parts and other per-step means."""
        for name, value in parts.items():
            share = value.detach().float()
            self.parts[name] = self.parts[name] + share if name in self.parts else share


@dataclass(frozen=True)
class StepTotals:
    """The step over all ranks."""

    loss: float
    parts: dict[str, float]
    tokens: int
    samples: int
    skew_s: float
    """Slowest minus fastest rank, forward and backward."""


def total(tally: StepTally, agreement: Agreement) -> StepTotals:
    """Combine the ranks' tallies; the one host sync of a step, with the gradient norm.

    The loss shares are scaled so that their mean over ranks is the step's loss.
    """
    losses = tally.losses or [torch.tensor(0.0)]
    names = list(tally.parts)
    values = torch.stack([sum(losses, losses[0].new_zeros(())).float(), *tally.parts.values()])
    mine = [*values.cpu().tolist(), float(tally.tokens), float(tally.samples), tally.compute_s]
    rows = agreement.rows(mine)
    columns = list(zip(*rows, strict=True))
    means = [sum(column) / len(rows) for column in columns]
    return StepTotals(
        loss=means[0],
        parts=dict(zip(names, means[1 : 1 + len(names)], strict=True)),
        tokens=round(sum(columns[-3])),
        samples=round(sum(columns[-2])),
        skew_s=max(columns[-1]) - min(columns[-1]),
    )
