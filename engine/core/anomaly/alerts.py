"""Findings of the detector, the alerts with headlines made from them, and verdicts on alerts."""

from __future__ import annotations

import math

import msgspec

INFO, WATCH, ALARM = "info", "watch", "alarm"
INSTABILITY = frozenset({"spike", "divergence", "grad_explosion", "nonfinite"})
"""Kinds that threaten the weights; a checkpoint written near one is not a rollback target."""

UNSTABLE = "unstable"
"""The kind of one more peak in a run that has had such peaks again and again. It updates the
incident of the newest alarm of that kind; it is no alarm, and threatens nothing by itself."""

LOCAL = frozenset({"throughput_drop", "vram_leak"})
"""Kinds that only the affected rank can see; other ranks take no part in their report."""


class Again(msgspec.Struct, frozen=True, kw_only=True):
    """How often peaks of a kind recur in a run."""

    kind: str
    """Kind of the alarms that the first peaks raised: spike or grad_explosion."""
    peaks: int
    """Peaks of the run so far."""
    every: float
    """Mean distance between peaks: records in a finding, steps in an alert."""


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """A finding in the newest record that is worth a person's attention."""

    id: str
    """`<kind>-<step>`; unique within one timeline."""
    kind: str
    """nonfinite, spike, divergence, grad_explosion, dead, plateau, overfit, forgetting,
    collapse, lr_misconfig, throughput_drop, straggler, vram_leak, unstable."""
    severity: str
    """info (worth a line), watch (may become serious) or alarm (act)."""
    step: int
    headline: str
    """One plain line, such as `loss 6.52 is ×6.5 its usual 1.00 (z 14)`."""
    value: float | None = None
    baseline: float | None = None
    """The value it is compared with in the same unit, mostly its usual level."""
    z: float | None = None
    """Distance from the level in robust standard deviations."""
    ratio: float | None = None
    """Value over baseline."""
    explained_by: str = ""
    """The one odd record that explains it, by the losses of the rows; empty without one."""
    again: Again | None = None
    """How often its peaks recur, for the kind `unstable`; else None."""
    incident: str = ""
    """Id of the first alert of the same cause; empty for a hint, or if it was never raised."""

    @property
    def threatens(self) -> bool:
        """Whether the alert threatens the weights, so that a recovery returns to before it.

        That is an instability that is more than information and that no odd record explains.
        """
        return self.kind in INSTABILITY and self.severity != INFO and not self.explained_by


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


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A finding before it becomes an alert: its kind and its numbers."""

    kind: str
    severity: str
    what: str
    """The quantity, as the first words of the headline."""
    value: float
    level: float | None = None
    level_name: str = "its usual"
    """What `level` is, as words of the headline before its number."""
    z: float | None = None
    tail: str = ""
    """The last words of the headline; may be empty."""
    rank: int = 0
    """The rank concerned, for findings about one rank."""
    again: Again | None = None
    """How often its peaks recur, for the kind `unstable`; else None."""


Findings = tuple[Finding, ...]
"""The findings of a record. Almost every record has none, which costs no memory."""


def to_alert(finding: Finding, step: int, interval: int = 1) -> Alert:
    """Return the alert for a finding, with its headline.

    `interval` is the number of steps between records.
    """
    again = finding.again
    if again is not None:
        again = msgspec.structs.replace(again, every=again.every * interval)
    value, level = finding.value, finding.level
    ratio = None
    if level is not None and level > 0 and math.isfinite(value):
        ratio = value / level
    return Alert(
        id=f"{finding.kind}-{step}",
        kind=finding.kind,
        severity=finding.severity,
        step=step,
        headline=_headline(finding, ratio) + ("" if again is None else f"; {_recurs(again)}"),
        value=value,
        baseline=level,
        z=finding.z,
        ratio=ratio,
        again=again,
    )


def figure(value: float) -> str:
    """Return a value with four digits; `NaN` or `∞`, as in the app, if it is not finite."""
    if math.isnan(value):
        return "NaN"
    return f"{value:.4g}" if math.isfinite(value) else "∞" if value > 0 else "-∞"


def _recurs(again: Again) -> str:
    return f"peak {again.peaks} of this run, one in about {again.every:.3g} steps"


def _headline(finding: Finding, ratio: float | None) -> str:
    words = [f"{finding.what} {figure(finding.value)}"]
    if ratio is not None and ratio > 0 and finding.level is not None:
        words.append(f"is ×{ratio:.3g} {finding.level_name} {finding.level:.4g}")
    elif finding.level is not None:
        words.append(f"against {finding.level_name} {finding.level:.4g}")
    if finding.z is not None:
        words.append(f"(z {finding.z:.0f})")
    if finding.tail:
        words.append(finding.tail)
    return " ".join(words)
