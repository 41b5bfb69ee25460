"""Checks of the sequences of an optimizer step: their number, micro-batches and ranks."""

from __future__ import annotations

from collections.abc import Iterator

from ..memory.micro_batch import why_batch_matters
from ..schema import RunConfig
from .problem import Problem


def check_batch(config: RunConfig) -> Iterator[Problem]:
    """Yield problems of `train.batch`, `train.accumulate` and `train.sequences_per_update`."""
    train = config.train
    total = train.sequences_per_update
    if total is None:
        if train.batch == "auto":
            yield Problem(
                "train.batch",
                "got auto, which divides a known number of sequences into micro-batches; set "
                "train.sequences_per_update, such as 16, instead of train.accumulate, or a number "
                "for train.batch",
            )
        return
    if train.accumulate is not None:
        yield Problem(
            "train.sequences_per_update",
            f"got {total} beside train.accumulate: {train.accumulate}, but the sequences of an "
            "optimizer step are given by one of the two; remove the other one",
        )
    yield from _check_division(config, total)
    if train.batch == "auto" and (reason := why_batch_matters(config)):
        yield Problem(
            "train.batch",
            f"got auto, but {reason}, so the result would depend on the card; set a number, "
            "or contrastive.cross_accumulation: on, which takes the negatives from the whole step",
        )


def _check_division(config: RunConfig, total: int) -> Iterator[Problem]:
    train = config.train
    each = train.micro_batch_size * train.ranks
    if total % each == 0:
        return
    of_ranks = f"{train.ranks} rank{'s' * (train.ranks != 1)}"
    what = of_ranks if train.batch == "auto" else f"train.batch {train.batch} × {of_ranks}"
    near = [size for size in (total // each * each, (total // each + 1) * each) if size]
    yield Problem(
        "train.sequences_per_update",
        f"got {total}, which is not a multiple of {what}, so that ranks or micro-batches would "
        f"differ in size; set {' or '.join(map(str, near))}"
        + ("" if train.batch == "auto" else ", or another train.batch"),
    )
