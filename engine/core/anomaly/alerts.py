"""What the detector says: an alert when something looks wrong, later a verdict on it."""

from __future__ import annotations

import msgspec

INFO, WATCH, ALARM = "info", "watch", "alarm"
INSTABILITY = frozenset({"spike", "divergence", "grad_explosion", "nonfinite"})
"""Kinds that threaten the weights: a checkpoint taken near one is no rollback target."""

LOCAL = frozenset({"throughput_drop", "vram_leak"})
"""Kinds that only the rank they concern can see; no other rank takes part in their report."""


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """Something in the record just seen stands out."""

    id: str
    """`<kind>-<step>`: unique within one timeline."""
    kind: str
    """nonfinite, spike, divergence, grad_explosion, dead, plateau, overfit, collapse,
    lr_misconfig, throughput_drop, straggler, vram_leak."""
    severity: str
    """info: worth a line; watch: may become serious; alarm: act."""
    step: int
    headline: str
    """One plain line, such as `loss 6.52 is ×6.5 its level 1.00 (z 14)`."""
    value: float | None = None
    baseline: float | None = None
    """The level the value is held against, in the same unit."""
    z: float | None = None
    """Distance from the level in robust standard deviations."""
    ratio: float | None = None
    """Value over baseline."""


class AlertVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """How an earlier alert ended: the question that decides between going on and rolling back."""

    id: str
    """Of the alert judged."""
    verdict: str
    """recovered or not recovered; undecided where the run ends too soon after it to tell."""
    step: int
    level_before: float
    level_after: float | None = None
    """None when nothing finite came after it."""
