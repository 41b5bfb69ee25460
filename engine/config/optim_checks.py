"""What settings of schedule, rates and targets contradict."""

from __future__ import annotations

from collections.abc import Iterator

from .problems import Problem
from .schema import RunConfig
from .tasks import JUDGED

WITHOUT_FLOOR = ("constant", "inverse_sqrt", "cosine_restarts")
"""Schedules that `train.lr_floor` means nothing to."""


def _check_schedule(config: RunConfig) -> Iterator[Problem]:
    train = config.train
    if train.lr_floor and train.schedule in WITHOUT_FLOOR:
        yield Problem(
            "train.lr_floor",
            f"got {train.lr_floor:g}, but the schedule {train.schedule} has no end to put a floor "
            "under; set train.schedule: cosine (or linear, polynomial, wsd, one_cycle), or "
            "train.lr_floor: 0",
        )


def _check_ratios(config: RunConfig) -> Iterator[Problem]:
    ratio = config.train.lr_ratios.temperature
    if ratio != 1 and not config.contrastive.learn_temperature:
        yield Problem(
            "train.lr_ratios.temperature",
            f"got {ratio:g}, but the temperature is not trained; set contrastive.learn_temperature:"
            " true, or leave the ratio out",
        )


def _check_whole_modules(config: RunConfig) -> Iterator[Problem]:
    names, ratio = config.adapter.modules_to_save, config.train.lr_ratios.embeddings
    if ratio != 1 and not names:
        yield Problem(
            "train.lr_ratios.embeddings",
            f"got {ratio:g}, but no module is trained whole; set adapter.modules_to_save, such as "
            "[embed_tokens], or leave the ratio out",
        )
    if names and config.train.memory == "lean":
        yield Problem(
            "adapter.modules_to_save",
            f"got {', '.join(names)}, but train.memory: lean keeps embedding and head where they "
            "cannot be trained; set train.memory: plain, or an empty list",
        )


def _check_smoothing(config: RunConfig) -> Iterator[Problem]:
    if not config.train.label_smoothing:
        return
    if config.task in JUDGED:
        yield Problem(
            "train.label_smoothing",
            f"smooths next-token targets, which task {config.task} does not learn; set "
            "preference.label_smoothing, and train.label_smoothing: 0",
        )
    if config.contrastive.ce_weight == 0:
        yield Problem(
            "train.label_smoothing",
            "smooths the targets of the next-token loss, but contrastive.ce_weight is 0; set it, "
            "or train.label_smoothing: 0",
        )
    if config.train.memory == "lean":
        yield Problem(
            "train.label_smoothing",
            "needs the whole head at once, but train.memory: lean keeps it in slices; set "
            "train.memory: plain, or train.label_smoothing: 0",
        )


RECIPE = (_check_schedule, _check_ratios, _check_whole_modules, _check_smoothing)
"""Checks of how is trained."""
