"""Alerts of the detector, the verdicts on them, and the kinds that need special treatment."""

from __future__ import annotations

import msgspec

INFO, WATCH, ALARM = "info", "watch", "alarm"
INSTABILITY = frozenset({"spike", "divergence", "grad_explosion", "nonfinite"})
"""Kinds that threaten the weights; a checkpoint written near one is no rollback target."""

LOCAL = frozenset({"throughput_drop", "vram_leak"})
"""Kinds that only the affected rank can see; other ranks take no part in their report."""


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """A finding in the newest record that is worth a person's attention."""

    id: str
    """`<kind>-<step>`; unique within one timeline."""
    kind: str
    """nonfinite, spike, divergence, grad_explosion, dead, plateau, overfit, collapse,
    lr_misconfig, throughput_drop, straggler, vram_leak."""
    severity: str
    """info (worth a line), watch (may become serious) or alarm (act)."""
    step: int
    headline: str
    """One plain line, such as `loss 6.52 is ×6.5 its level 1.00 (z 14)`."""
    value: float | None = None
    baseline: float | None = None
    """The usual level the value is compared with, in the same unit."""
    z: float | None = None
    """Distance from the level in robust standard deviations."""
    ratio: float | None = None
    """Value over baseline."""


class AlertVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of an earlier alert, which decides between continuing and rolling back."""

    id: str
    """Id of the alert."""
    verdict: str
    """recovered, not recovered, or undecided if the run ended too soon after the alert."""
    step: int
    level_before: float
    level_after: float | None = None
    """Value at the verdict; None if no finite value followed."""
