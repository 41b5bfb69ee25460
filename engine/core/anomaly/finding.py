"""Findings of the detector, and the alerts with headlines that are made from them."""

from __future__ import annotations

import math

import msgspec

from .alerts import Alert


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A finding before it becomes an alert: its kind and its numbers."""

    kind: str
    severity: str
    what: str
    """The quantity, as the first words of the headline."""
    value: float
    level: float | None = None
    z: float | None = None
    tail: str = ""
    """The last words of the headline; may be empty."""
    rank: int = 0
    """The rank concerned, for findings about one rank."""


def to_alert(finding: Finding, step: int) -> Alert:
    """Return the alert for a finding, with its headline."""
    value, level = finding.value, finding.level
    ratio = None
    if level is not None and level > 0 and math.isfinite(value):
        ratio = value / level
    return Alert(
        id=f"{finding.kind}-{step}",
        kind=finding.kind,
        severity=finding.severity,
        step=step,
        headline=_headline(finding, ratio),
        value=value,
        baseline=level,
        z=finding.z,
        ratio=ratio,
    )


def _headline(finding: Finding, ratio: float | None) -> str:
    words = [f"{finding.what} {finding.value:.4g}"]
    if ratio is not None and ratio > 0 and finding.level is not None:
        words.append(f"is ×{ratio:.3g} its level {finding.level:.4g}")
    elif finding.level is not None:
        words.append(f"against its level {finding.level:.4g}")
    if finding.z is not None:
        words.append(f"(z {finding.z:.0f})")
    if finding.tail:
        words.append(finding.tail)
    return " ".join(words)
