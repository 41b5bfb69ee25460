"""What settings of the data contradict."""

from __future__ import annotations

from collections.abc import Iterator

from .problems import STDLIB_PAIRS, Problem
from .schema import RunConfig


def _check_packing(config: RunConfig) -> Iterator[Problem]:
    if not config.data.packing:
        return
    if config.task != "sft" or config.contrastive.kind != "off":
        yield Problem(
            "data.packing",
            "rows of several records serve next-token training alone; set data.packing: false, or "
            "task: sft with contrastive.kind: off",
        )
    if config.model.attention == "flash_attention_2" and config.train.batch > 1:
        yield Problem(
            "train.batch",
            f"got {config.train.batch}, but flash_attention_2 keeps packed records apart in one "
            "row at a time only; set train.batch: 1 with a larger data.max_length, or "
            "model.attention: sdpa",
        )


def _check_mix(config: RunConfig) -> Iterator[Problem]:
    train = config.data.train
    if isinstance(train, str):
        return
    if not train:
        yield Problem("data.train", "the list is empty, so there is nothing to train on")
    weighted = [one.path for one in train if one.weight is not None]
    if weighted and len(weighted) < len(train):
        yield Problem(
            "data.train",
            f"{len(weighted)} of {len(train)} sources have a weight; give each one, or none, "
            "which uses every record once an epoch",
        )
    if any(one.path == STDLIB_PAIRS for one in train):
        yield Problem("data.train", f"{STDLIB_PAIRS} cannot be mixed; name files or hub datasets")
    places = [(one.path, one.split) for one in train]
    for path, _ in sorted({place for place in places if places.count(place) > 1}, key=str):
        yield Problem("data.train", f"{path} is listed twice; list it once with a larger weight")


def _check_streaming(config: RunConfig) -> Iterator[Problem]:
    data = config.data
    if not data.streaming:
        return
    if config.train.steps is None:
        yield Problem(
            "train.epochs",
            "the length of streamed data is not known; set train.steps (and train.epochs: null)",
        )
    if data.eval is None and data.eval_fraction:
        yield Problem(
            "data.eval_fraction",
            f"got {data.eval_fraction:g}, but nothing can be held out of streamed data; name "
            "data.eval, or set data.eval_fraction: 0",
        )
    if data.packing:
        yield Problem(
            "data.packing",
            "rows are filled knowing all records, and streamed ones are not known; set one of "
            "data.packing and data.streaming to false",
        )
    if len(data.sources) > 1 and not all(one.weight for one in data.sources):
        yield Problem(
            "data.train",
            "streamed sources are mixed by their weights, as their lengths are not known; give "
            "each a weight",
        )
    for one in data.sources:
        if one.path.endswith(".json") or one.path == STDLIB_PAIRS:
            yield Problem(
                "data.streaming",
                f"{one.path} can only be read as a whole; stream .jsonl or .parquet files or hub "
                "datasets, or set data.streaming: false",
            )


DATA = (_check_packing, _check_mix, _check_streaming)
"""Checks of the data."""
