"""Step metrics: losses, counts and times of one optimizer step, on this rank and on all ranks."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..distributed.agreement import Agreement, PendingResult, Table
from ..usage.meter import RankUse


@dataclass
class StepMetrics:
    """The measurements of one rank during one step."""

    started: float = field(default_factory=time.perf_counter)
    data_s: float = 0.0
    compute_s: float = 0.0
    optimizer_s: float = 0.0
    tokens: int = 0
    samples: int = 0
    losses: list[Tensor] = field(default_factory=list)
    parts: dict[str, Tensor] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    """Further per-step means that the host knows, such as those that a script logs."""
    without_loss: bool = False
    """Whether a script has reported no loss of this step on this rank."""
    without_targets: bool = False
    """Whether the step has nothing to learn on any rank: no target, or only weights of 0."""
    lacks_targets: list[Callable[[], bool]] = field(default_factory=list)
    """Whether each micro-batch of a script has no target; asked only if the loss is NaN or 0."""
    uncounted: list[Tensor] = field(default_factory=list)
    """Tokens of micro-batches that are on the device, each []."""

    def time(self, what: str) -> AbstractContextManager[None]:
        """Return a context that adds the time spent in its block to `<what>_s`."""
        return _Timed(self, f"{what}_s")

    def count(self, batch: dict[str, Any]) -> None:
        """Count the tokens without padding and the samples of a micro-batch that is on the host.

        Packed rows carry their counts, which are removed before the model receives the batch. A
        count on the device is read with the loss, so that the host does not wait for it.
        """
        tokens = batch.pop("token_count", None)
        if isinstance(tokens, Tensor) and tokens.device.type != "cpu":
            self.uncounted.append(tokens)
        else:
            self.tokens += int(batch["attention_mask"].sum() if tokens is None else tokens)
        if (check := batch.pop("lacks_targets", None)) is not None:
            self.lacks_targets.append(check)
        samples = batch.pop("document_count", None) or batch.get("pair_count")
        self.samples += int(samples or len(batch["input_ids"]))

    @property
    def all_lack_targets(self) -> bool:
        """Whether no micro-batch of a script has a target on this rank."""
        return bool(self.lacks_targets) and all(check() for check in self.lacks_targets)

    def mark_without_targets(self) -> None:
        """Note that the step has nothing to learn on any rank."""
        self.without_targets = True

    def add_compute_time(self, seconds: float) -> None:
        """Add the time of passes that were measured elsewhere."""
        self.compute_s += seconds

    def add_optimizer_time(self, seconds: float) -> None:
        """Set the time from the end of the backward pass to the end of the update."""
        self.optimizer_s = seconds

    def add_parts(self, **parts: Tensor) -> None:
        """Add shares of the step's loss parts and other per-step means."""
        for name, value in parts.items():
            share = value.detach().float()
            self.parts[name] = self.parts[name] + share if name in self.parts else share


class _Timed:
    """Adds the time spent in its block to a field of the step; faster than a generator."""

    __slots__ = ("_field", "_started", "_tally")

    def __init__(self, tally: StepMetrics, field: str) -> None:
        self._tally = tally
        self._field = field

    def __enter__(self) -> None:
        self._started = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        spent = getattr(self._tally, self._field) + time.perf_counter() - self._started
        setattr(self._tally, self._field, spent)


class RankStep(NamedTuple):
    """The loss, gradient norm and metrics of a step on this rank, before totals are known."""

    loss: float
    """This rank's share of the loss; the mean over ranks is the loss of the step."""
    grad_norm: float
    """Gradient norm after the all-reduce and before clipping, the same on every rank."""
    parts: dict[str, float]
    held: bool = False
    """Whether the device has held the update back."""
    tokens: int = 0
    """Tokens that were counted on the device."""


def summed(tally: StepMetrics, grad_norm: Tensor) -> Tensor:
    """Return the sum of the micro-batch losses, this rank's share of the step's loss, [] fp32.

    Without a micro-batch it is 0 on the device of `grad_norm`.
    """
    losses = tally.losses or [grad_norm.new_zeros(())]
    return sum(losses[1:], losses[0]).float()


def settle(
    loss: Tensor, grad_norm: Tensor, tally: StepMetrics, held: Tensor | None = None
) -> PendingResult[RankStep]:
    """Start to copy loss, norm and parts of a step to the host; `read` waits for the device.

    Parts that are on the host already stay there.
    """
    parts = tally.parts
    if loss.is_cpu and grad_norm.is_cpu and held is None and not parts and not tally.uncounted:
        now = loss.item(), grad_norm.float().item()
        return PendingResult(lambda: RankStep(*now, dict(tally.figures)))
    norm = grad_norm.detach().float().to(loss.device)
    flag = loss.new_zeros(()) if held is None else held
    on_device = on_same_device(parts, loss)
    counts = [one.float().to(loss.device) for one in tally.uncounted]
    row = [loss, norm, flag, *on_device.values(), *counts]
    sent = torch.stack(row).to("cpu", non_blocking=True)
    arrived = torch.cuda.Event() if loss.is_cuda else None  # type: ignore[no-untyped-call]  # of torch
    if arrived is not None:
        arrived.record()

    def read() -> RankStep:
        if arrived is not None:
            arrived.synchronize()
        own_loss, norm, held_back, *values = sent.tolist()
        copied = dict(zip(on_device, values, strict=False))
        found = {k: copied[k] if k in copied else float(part) for k, part in parts.items()}
        tokens = round(sum(values[len(on_device) :]))
        return RankStep(own_loss, norm, found | tally.figures, held_back > 0, tokens)

    return PendingResult(read)


def on_same_device(parts: dict[str, Tensor], loss: Tensor) -> dict[str, Tensor]:
    """Return the parts on the device of the loss, which are copied to the host together."""
    return {name: part for name, part in parts.items() if part.device == loss.device}


class StepTotals(NamedTuple):
    """The losses, counts and readings of a step over all ranks."""

    loss: float | None
    """The mean over the ranks that have reported one; None if none has."""
    parts: dict[str, float]
    tokens: int
    samples: int
    skew_s: float
    """Seconds of the slowest rank minus those of the fastest."""
    uses: list[RankUse]
    """What the process of rank 0 has used since it started, and what those of all others have."""
    rank_s: list[float]
    """Seconds of each rank up to its last backward pass, after which it waits for the others.

    All lists by rank are empty in steps that leave them out (`lists_ranks`).
    """
    rank_tokens: list[int]
    rank_mem_bytes: list[int]
    """Memory of each rank in the previous step.

    This list and the following ones are empty if any rank has no value.
    """
    rank_util: list[float]
    rank_temp_c: list[float]
    rank_power_w: list[float]
    without_targets: bool = False
    """Whether every rank has found that its part of the step has no target."""


LISTED_RANKS = 16
"""Up to so many ranks, every step lists the figures of each; with more of them, a step in several
does, so that time and journal per step do not grow with the number of ranks."""


def lists_ranks(step: int, ranks: int) -> bool:
    """Return whether the record of a step lists the figures of every rank: one in N/16 of them."""
    return step % math.ceil(ranks / LISTED_RANKS) == 0


class DeviceReading(NamedTuple):
    """The readings of a rank's accelerator; None without one or where it reports none."""

    mem_bytes: int | None = None
    util: float | None = None
    temp_c: float | None = None
    power_w: float | None = None


_READINGS = len(DeviceReading._fields)
_USES = len(RankUse._fields)
_USE = slice(-_USES - 1, -1)
"""The usage in a row; the last value says whether the rank has no target."""


def start_total(
    own: RankStep,
    tally: StepMetrics,
    own_s: float,
    agreement: Agreement,
    device: DeviceReading,
    use: RankUse,
    *,
    lacking: bool = False,
    listed: bool = True,
) -> PendingResult[StepTotals]:
    """Start to combine the figures of all ranks; the result is read after the update, or before.

    `lacking` is whether this rank has found that its part has no target, `listed` whether the
    result has the lists by rank.
    """
    counts = [float(tally.tokens + own.tokens), float(tally.samples), float(not tally.without_loss)]
    readings = [math.nan if value is None else float(value) for value in device]
    mine = [own.loss, *own.parts.values(), *counts, own_s, *readings, *use, float(lacking)]
    table = agreement.start_table(mine)

    @functools.cache
    def combined() -> StepTotals:
        return _combine(table.read(), list(own.parts), listed=listed)

    return PendingResult(combined)


def _combine(table: Table, names: list[str], *, listed: bool) -> StepTotals:
    """Return the totals of rows as `start_total` sends them; Python only sees sums over the ranks.

    A sum of numpy is the same on every rank, as their rows are.
    """
    if len(table) == 1:
        return _of_one(table[0].tolist(), names)
    count, first_use = len(names), RankUse(*table[0, _USE].tolist())
    sums = table.sum(axis=0).tolist()
    means = [total / len(table) for total in sums[1 : 1 + count]]
    tokens, samples, reported = sums[1 + count : 4 + count]
    others = RankUse(*table[1:, _USE].sum(axis=0).tolist())
    seconds = table[:, 4 + count]
    return StepTotals(
        loss=sums[0] / reported if reported else None,
        parts=dict(zip(names, means, strict=True)),
        tokens=round(tokens),
        samples=round(samples),
        skew_s=float(seconds.max() - seconds.min()),
        uses=[first_use, others],
        without_targets=sums[-1] == len(table),
        **_by_rank(table, count, listed=listed),
    )


def _by_rank(table: Table, parts: int, *, listed: bool) -> dict[str, list[Any]]:
    """Return the lists by rank of the totals, of rows with so many parts of the loss."""
    names = ("rank_s", "rank_tokens", "rank_mem_bytes", "rank_util", "rank_temp_c", "rank_power_w")
    if not listed:
        return {name: [] for name in names}
    columns = [table[:, 4 + parts], table[:, 1 + parts], *table[:, 5 + parts : _USE.start].T]
    columns[2:] = [column[: 0 if np.isnan(column).any() else None] for column in columns[2:]]
    whole = {"rank_tokens", "rank_mem_bytes"}
    return {
        name: (column.astype(np.int64) if name in whole else column).tolist()
        for name, column in zip(names, columns, strict=True)
    }


def _of_one(row: list[float], names: list[str]) -> StepTotals:
    """Return what `_combine` returns for a single rank, where no mean has to be taken."""
    loss, parts, (tokens, samples, reported, rank_s, *device) = (
        row[0],
        row[1 : 1 + len(names)],
        row[1 + len(names) :],
    )
    device, use, lacking = device[:_READINGS], device[_READINGS:-1], device[-1]
    memory, util, temp_c, power_w = ([] if math.isnan(value) else [value] for value in device)
    return StepTotals(
        loss if reported else None,
        dict(zip(names, parts, strict=True)),
        round(tokens),
        round(samples),
        0.0,
        [RankUse(*use)],
        [rank_s],
        [round(tokens)],
        [int(held) for held in memory],
        util,
        temp_c,
        power_w,
        lacking > 0,
    )
