"""Scores of text pairs: their mapping to the range of a cosine, and the checks before training."""

from __future__ import annotations

from collections.abc import Sequence

from ...config.schema import ContrastiveConfig
from ...config.tasks import SCORED_KINDS
from ...errors import DataError
from .examples import Example, PairExample, example_place

ScoreRange = tuple[float, float]
"""Lowest and highest possible score of the data."""
ALLOWED: ScoreRange = (-1.0, 1.0)
"""Scores that the cosine loss can reach."""


def mapped(score: float, limits: ScoreRange | None) -> float:
    """Return a score with its range mapped to 0 … 1; unchanged without a range."""
    return score if limits is None else (score - limits[0]) / (limits[1] - limits[0])


def stored(score: float, limits: ScoreRange | None) -> float:
    """Return the score as stored in the data, from the mapped one."""
    return score if limits is None else limits[0] + score * (limits[1] - limits[0])


def require_scores(config: ContrastiveConfig, examples: Sequence[Example]) -> None:
    """Raise if the scores of the pairs and the contrastive loss do not fit together.

    Raises:
        DataError: The loss ignores scores that the data have, or cannot reach them.
    """
    scored = [one for one in examples if isinstance(one, PairExample) and one.score is not None]
    if not scored:
        return
    if config.kind not in SCORED_KINDS:
        raise DataError(_ignored(config.kind, scored, len(examples)))
    if config.kind == "cosine":
        _require_reachable(config, scored)


def require_different_scores(config: ContrastiveConfig, examples: Sequence[Example]) -> None:
    """Raise if all scored pairs have the same score.

    Raises:
        DataError: There is no difference between the scores.
    """
    scored = [one for one in examples if isinstance(one, PairExample) and one.score is not None]
    if len(scored) > 1 and len({one.score for one in scored}) == 1:
        raise DataError(
            f"all {len(scored):,} pairs have the score {_stored(scored[0], config):g}, so there is "
            "no difference to learn; check the column of the score, or set contrastive.kind: "
            "infonce for pairs that all match"
        )


def score_facts(config: ContrastiveConfig, examples: Sequence[Example]) -> dict[str, str]:
    """Return {"scores": range and mean of the training scores as stored, and how they are used}.

    Empty for losses without scores, and for pairs without scores.
    """
    if config.kind not in SCORED_KINDS:
        return {}
    found = [
        _stored(one, config)
        for one in examples
        if isinstance(one, PairExample) and one.score is not None
    ]
    if not found:
        return {}
    used = "only their order is used" if config.kind == "cosent" else "used as they are"
    if config.score_range is not None:
        low, high = config.score_range
        used = f"{low:g} … {high:g} mapped to 0 … 1"
    mean = sum(found) / len(found)
    return {"scores": f"{min(found):g} to {max(found):g}, mean {mean:.3g}; {used}"}


def _require_reachable(config: ContrastiveConfig, scored: Sequence[PairExample]) -> None:
    limits = config.score_range
    low, high = ALLOWED if limits is None else (0.0, 1.0)
    outside = [one for one in scored if not low <= _score(one) <= high]
    if not outside:
        return
    values = [_stored(one, config) for one in scored]
    first, shown = outside[0], ALLOWED if limits is None else limits
    remedy = (
        "set contrastive.score_range: [lowest, highest] to the scale of the data, such as [0, 5], "
        "which is mapped to 0 … 1"
        if limits is None
        else "correct contrastive.score_range or these scores"
    )
    raise DataError(
        f"{len(outside):,} of {len(scored):,} scores are outside {shown[0]:g} … {shown[1]:g} "
        f"(first: {example_place(first)}: {_stored(first, config):g}; all scores: "
        f"{min(values):g} to {max(values):g}), and kind cosine compares scores with cosines; "
        f"{remedy}, or set contrastive.kind: cosent, which uses only the order of the scores"
    )


def _ignored(kind: str, scored: Sequence[PairExample], total: int) -> str:
    values = [_score(one) for one in scored]
    return (
        f"{len(scored):,} of {total:,} pairs have a score ({min(values):g} to {max(values):g}; "
        f"first: {example_place(scored[0])}), but kind {kind} would train every pair as a match, "
        "also those of unlike texts; set contrastive.kind: cosent (or cosine), or remove the "
        "scores if all pairs match"
    )


def _score(example: PairExample) -> float:
    assert example.score is not None, "only pairs with a score are compared"
    return example.score


def _stored(example: PairExample, config: ContrastiveConfig) -> float:
    return stored(_score(example), config.score_range)
