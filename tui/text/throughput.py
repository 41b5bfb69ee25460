"""Throughput as text: tokens per second, or samples where batches have no tokens."""

from __future__ import annotations

from fttui.engine.protocol.events import StepFinished

from . import format as fmt


def throughput_metric(step: StepFinished | None) -> str:
    """Return the name of the metric that counts what a run trains on per second."""
    counts_tokens = step is None or step.tokens > 0 or step.samples == 0
    return "tokens_per_s" if counts_tokens else "samples_per_s"


def throughput(metric: str, per_s: float, *, exact: bool = False) -> str:
    """Return a throughput with its unit, such as `1.2k tok/s` or `68.0 samples/s`.

    Args:
        metric: name of the metric, as `throughput_metric` returns it.
        per_s: tokens or samples per second.
        exact: whether all digits of a number of tokens are shown.
    """
    if metric == "samples_per_s":
        return f"{per_s:,.1f} samples/s"
    return f"{per_s:,.0f} tok/s" if exact else f"{fmt.count(per_s)} tok/s"
