"""Checks of the forgetting meter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..schema import RunConfig
from ..sections.forgetting import GENERAL
from .problem import Problem

FORGETTING = ("forgetting.loss", "forgetting.rise", "forgetting.balance")
"""Metrics of the forgetting meter."""


def check_forgetting(config: RunConfig) -> Iterator[Problem]:
    """Yield a forgetting meter for a task without a next-token loss, or without evaluations."""
    if config.forgetting.texts is None:
        return
    if reason := why_no_next_token(config):
        yield Problem("forgetting.texts", f"{reason}; remove the key")
    if not config.data.eval and not config.data.eval_fraction:
        yield Problem(
            "forgetting.texts",
            "the loss is measured with evaluations, and there are no evaluation data; set "
            "data.eval_fraction or data.eval",
        )


def why_no_next_token(config: RunConfig) -> str:
    """Return why the next-token loss says nothing about a model of this task; empty if it does."""
    if config.task == "reward":
        return "task reward trains a model that scores texts and predicts no tokens"
    if config.task == "contrastive" and not config.contrastive.ce_weight:
        return (
            "task contrastive without contrastive.ce_weight trains embeddings, and the model "
            "predicts no tokens afterwards"
        )
    return ""


def missing_texts(config: RunConfig) -> list[Problem]:
    """Return a problem if the file of texts does not exist."""
    texts = config.forgetting.texts
    if texts is None or texts == GENERAL or Path(texts).expanduser().is_file():
        return []
    return [
        Problem("forgetting.texts", f"no file {texts}; give a file of texts, or write {GENERAL}")
    ]
