"""Thresholds and orders shared by the engine and the app, which does not import `engine.core`.

For slow ranks they are two numbers because they answer two questions. The detector smooths each
rank's time over about 25 steps and waits 50 steps, so 5 % is clear of noise. The app marks a rank
in a single step, in which ranks differ by more than that because their batches do; there only 20 %
is worth a mark.
"""

from __future__ import annotations

from .benchmarks.result import BENCH, lower_benchmark_is_better

SLOW_RANK_RATIO = 1.05
"""Smoothed time of a rank over the median of the others, above which the detector counts it as
slow. All ranks wait for the slowest, so the whole run pays for it."""
SLOW_STEP_RATIO = 1.2
"""Time of a rank in one step over the median of all ranks, above which the app marks it."""

RECURRENCE_NEWS = 1.25
"""Growth of the number of recurring peaks from which the engine reports them again. So the state
of an unstable run is known well, and its journal has few events about it, however long it is."""
INCIDENT_STEPS = 50
"""Two alerts at most this many steps apart belong to one incident."""
TRAINING_KINDS = frozenset(
    {"spike", "divergence", "grad_explosion", "nonfinite", "collapse", "dead", "lr_misconfig"}
)
"""Kinds of alerts that follow from one another: they all concern the weights and their updates."""
_LOWER_IS_BETTER = frozenset(
    {
        "loss",
        "perplexity",
        "ce",
        "contrastive",
        "forgetting.loss",
        "forgetting.rise",
        "forgetting.balance",
    }
)
_LOWER_ENDINGS = ("_loss", "_error")


def lower_is_better(metric: str) -> bool:
    """Whether a lower value of a metric of an evaluation is better.

    A metric of a user's function or of a benchmark is such a one if its name ends with `_loss` or
    `_error`; of a benchmark, perplexities and the like are, too.
    """
    if metric in _LOWER_IS_BETTER or metric.endswith(_LOWER_ENDINGS):
        return True
    return metric.startswith(BENCH) and lower_benchmark_is_better(metric)
