"""The verdict of a race: by how much variants differ, and whether chance explains it.

All variants train on the same batches with the same random numbers, so that their losses are
compared step by step: what is hard in a batch is hard for both and cancels out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev

CONFIDENCE = 0.95
FEWEST_STEPS = 16
"""Steps in the compared half of a race below which no uncertainty is given."""
MOST_BLOCKS = 16


@dataclass(frozen=True)
class Difference:
    """The mean difference of the training losses of two variants on the same batches."""

    mean: float
    """Loss of the one minus loss of the other; above 0 if the other is better."""
    half_width: float
    """Half the width of the confidence interval; infinite for too few steps."""
    steps: int
    """Number of steps that were compared."""

    @property
    def beyond_chance(self) -> bool:
        """Whether the confidence interval leaves out 0."""
        return abs(self.mean) > self.half_width


def paired_difference(
    losses: Mapping[int, float], others: Mapping[int, float], comparisons: int = 1
) -> Difference | None:
    """Compare the losses of two variants over the second half of the steps that both trained.

    In the first half the variants have hardly moved apart. Losses of neighbouring steps depend on
    each other, so the interval comes from the means of blocks of steps; a difference that still
    grows widens it.

    Args:
        losses: loss of one variant by step; only finite ones.
        others: loss of the other variant by step; only finite ones.
        comparisons: number of comparisons that are made together; the confidence holds for all of
            them (Bonferroni).

    Returns:
        The difference, or None without a common step.

    Source: batch means, Law and Kelton, Simulation Modeling and Analysis.
    """
    common = sorted(losses.keys() & others.keys())
    compared = common[len(common) // 2 :]
    if not compared:
        return None
    gaps = [losses[step] - others[step] for step in compared]
    if len(gaps) < FEWEST_STEPS:
        return Difference(fmean(gaps), math.inf, len(gaps))
    blocks = min(MOST_BLOCKS, math.isqrt(len(gaps)))
    size = len(gaps) // blocks
    rest = len(gaps) - blocks * size
    means = [fmean(gaps[rest + n * size : rest + (n + 1) * size]) for n in range(blocks)]
    quantile = t_quantile(1 - (1 - CONFIDENCE) / 2 / max(1, comparisons), blocks - 1)
    return Difference(fmean(gaps), quantile * stdev(means) / math.sqrt(blocks), len(gaps))


def t_quantile(share: float, freedom: int) -> float:
    """Return the quantile of Student's t distribution, for 3 degrees of freedom or more.

    It is accurate to about a tenth up to a share of 0.999.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5.
    """
    z = NormalDist().inv_cdf(share)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return float(z + sum(term / freedom ** (n + 1) for n, term in enumerate(terms)))
