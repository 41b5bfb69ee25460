"""Checks before the first step that something can be learned from the tokenized data."""

from __future__ import annotations

from collections.abc import Sequence

from ..config.contrastive_candidates import pairs_compared
from ..config.data_reasons import NO_TARGET
from ..config.schema import RunConfig
from ..config.tasks import SCORED_KINDS
from ..errors import DataError
from .examples import Example, PairExample
from .findings import Findings
from .scores import require_different_scores, require_scores


def require_trainable(
    config: RunConfig, train: Sequence[Example], evaluation: Sequence[Example]
) -> None:
    """Raise if nothing, or not what the task is for, can be learned from the examples.

    Raises:
        DataError: The cause with its figures, and the step that helps.
    """
    require_usable(config, train)
    if config.task == "contrastive":
        require_scores(config.contrastive, evaluation)
    if not config.data.streaming:
        require_different_scores(config.contrastive, train)


def require_usable(config: RunConfig, examples: Sequence[Example]) -> None:
    """Raise if one of the examples cannot be used, as far as it can be judged by itself.

    Raises:
        DataError: The cause with its figures, and the step that helps.
    """
    if config.task == "contrastive":
        _require_candidates(config, examples)
        require_scores(config.contrastive, examples)


def all_dropped(source: str, findings: Findings, max_length: int) -> str:
    """Return the error text for a source of which no record is left, with the causes."""
    causes = [found for found in findings if found.reason.drops]
    listed = [f"{one.line}; {one.reason.remedy}" for one in causes]
    if any(one.reason is NO_TARGET for one in causes):
        listed.append(
            f"a target must be among the first {max_length:,} tokens of its record; for task sft, "
            "data.completion_only: false makes all tokens targets"
        )
    return "\n  ".join([f"{source}: all records were dropped, so nothing can be learned:", *listed])


def _require_candidates(config: RunConfig, examples: Sequence[Example]) -> None:
    """Raise if a pair has no negative although pairs are not compared with each other.

    Raises:
        DataError: A pair has no negative of its own.
    """
    if config.contrastive.kind in SCORED_KINDS or pairs_compared(config) > 1:
        return
    bare = [one.id for one in examples if isinstance(one, PairExample) and not one.negatives]
    if bare:
        raise DataError(
            f"{len(bare)} of {len(examples)} pairs have no negative of their own (first: "
            f"{bare[0]}), and with these settings they have no other candidates, so nothing would "
            "be learned from them; set contrastive.in_batch: true and contrastive."
            "cross_accumulation: on (or train.batch to 2 or more), or add a column 'negative'"
        )
