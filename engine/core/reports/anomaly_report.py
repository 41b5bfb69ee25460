"""Anomaly report: an alert with evidence, likely causes and recommended commands, and its JSON."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from ..anomaly import Alert
from ..recovery import RecoveryForecast
from .advice import ADVICE, AdviceContext, LrRise, Recommendation, recommend
from .causes import Signs, rank_causes
from .curve_plot import CurvePoint
from .row_losses import RowEvidence


class TrainingSample(msgspec.Struct, frozen=True, kw_only=True):
    """One training sample of the current or the previous batch."""

    rank: int
    batch: str
    """current or previous."""
    id: str
    tokens: int
    preview: str = ""
    """Beginning of the decoded text."""
    place: str = ""
    """Where the record is stored, such as `train.jsonl:7`; empty if built in memory."""
    loss: float | None = None
    """Its own loss with the weights after the alert's step; None if it was not computed."""

    @property
    def name(self) -> str:
        """The place of the record, or its id if it has none."""
        return self.place or self.id


class Module(msgspec.Struct, frozen=True):
    """Norms of one trained module in the update that the alert is about."""

    name: str
    grad_norm: float
    update_norm: float
    note: str = ""
    """dead, exploding or empty."""


MODULES_SHOWN = 5


def top_modules(modules: list[Module]) -> list[Module]:
    """Return the largest modules by gradient and by update norm, and the first ones with a note."""
    chosen = sorted(modules, key=lambda m: -_size(m.grad_norm))[:MODULES_SHOWN]
    chosen += sorted(modules, key=lambda m: -_size(m.update_norm))[:MODULES_SHOWN]
    chosen += [m for m in modules if m.note][:MODULES_SHOWN]
    return [m for m in modules if m in chosen]


def _size(norm: float) -> float:
    return norm if math.isfinite(norm) else math.inf


class LrChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change of the learning rate by a person or by the autopilot."""

    step: int
    text: str
    """The command, such as `lr scale 0.5`."""


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the run when the alert was raised, collected on every rank."""

    time: float
    """Unix seconds."""
    run: str = ""
    timeline: int = 1
    epoch: float | None = None
    current_loss: float | None = None
    previous_loss: float | None = None
    grad_norm: float | None = None
    grad_normal: tuple[float, float] | None = None
    """5th and 95th percentile of recent gradient norms."""
    lr: float | None = None
    """Learning rate of this step, LR scale included."""
    lr_scale: float = 1.0
    lr_changes: list[LrChange] = []
    lr_rise: LrRise | None = None
    """A rise of the learning rate shortly before; the rate may have been lowered since."""
    clip: float | None = None
    clip_share: float | None = None
    """Share of recent steps that were clipped."""
    mem_used_bytes: int | None = None
    mem_total_bytes: int | None = None
    loss_scale: float | None = None
    """Loss scale of fp16 training."""
    rank_s: list[float] = []
    """Seconds of each rank in this step; empty with one rank."""
    rank_mem_bytes: list[int] = []
    """Peak memory of each rank in the step before: allocated, or reserved in fast mode.

    Empty for a single rank and without GPUs.
    """
    modules: list[Module] = []
    """The largest, dead and exploding modules; empty if the gradient flow was not measured."""
    modules_step: int | None = None
    """Step of the measurement if it is later than the alert; else None."""
    samples: list[TrainingSample] = []
    """The first samples of both batches on every rank; with known losses, those with the highest.
    """
    rows: RowEvidence | None = None
    """What the losses of all rows say; None if they were not computed."""
    rows_missing: str = ""
    """Why the losses of rows are not known; empty if they are or do not matter."""
    curve: list[CurvePoint] = []
    """Loss and gradient norm of the steps around the alert, oldest first."""
    tried: list[str] = []
    """Commands applied because of earlier alarms of this incident, oldest first."""
    rollbacks: int = 0
    """Rollbacks already made because of this incident."""
    checkpoint: str | None = None
    """Newest good checkpoint before the first warning: the target of the recommended recovery."""
    checkpoint_step: int | None = None
    checkpoint_why: str = ""
    """Why the checkpoint counts as good."""
    guard: str = ""
    """Why the guard refused the update; empty if it did not."""
    recovery: RecoveryForecast = RecoveryForecast()
    """What `recover` would have done when the alert was raised."""


class AnomalyReport(msgspec.Struct, frozen=True, kw_only=True):
    """An alert with its evidence, likely causes and recommended actions."""

    id: str
    kind: str
    severity: str
    step: int
    issue: str
    """Headline of the alert."""
    value: float | None = None
    level_before: float | None = None
    level_now: float | None = None
    """For a divergence the level that the loss rose to, else the value itself."""
    z: float | None = None
    ratio: float | None = None
    evidence: Evidence
    causes: list[str] = []
    """Most likely first."""
    advice: str = ""
    actions: list[Recommendation] = []
    """Best first."""
    autopilot: str = ""
    """Decision of the autopilot with its reason; empty without one."""
    initiated: str = ""
    """The rollback that was made because of the anomaly; empty without one."""
    incident: str = ""
    """Id of the first alert of the same cause, its own if it is the first; empty for a hint."""
    explained_by: str = ""
    """The one odd record that explains the alert; empty without one."""
    verdict: str = ""
    """The verdict on the alert, such as `recovered`; empty while it is open."""


def build_report(alert: Alert, evidence: Evidence) -> AnomalyReport:
    """Build the report of an alert from its evidence."""
    now = AdviceContext(
        lr_scale=evidence.lr_scale,
        lr_rise=evidence.lr_rise,
        norm_high=evidence.grad_normal[1] if evidence.grad_normal else None,
        clip=evidence.clip,
        rollbacks=evidence.rollbacks,
        recovery=evidence.recovery,
    )
    return AnomalyReport(
        id=alert.id,
        kind=alert.kind,
        severity=alert.severity,
        step=alert.step,
        issue=alert.headline,
        value=alert.value,
        level_before=alert.baseline,
        level_now=alert.value,
        z=alert.z,
        ratio=alert.ratio,
        evidence=evidence,
        causes=rank_causes(alert, signs(alert, evidence)),
        advice=ADVICE.get(alert.kind, ""),
        actions=recommend(alert, now),
        explained_by=alert.explained_by,
    )


def signs(alert: Alert, seen: Evidence) -> Signs:
    """Return the evidence for the causes of an alert."""
    lengths = {
        batch: [s.tokens for s in seen.samples if s.batch == batch]
        for batch in ("current", "previous")
    }
    ids = [s.id for s in seen.samples if s.batch == "current"]
    high = seen.grad_normal[1] if seen.grad_normal else None
    grad_ratio = seen.grad_norm / high if seen.grad_norm is not None and high else None
    return Signs(
        grad_ratio=grad_ratio,
        lr_raised=[c.text for c in seen.lr_changes if alert.step - c.step <= 50],
        lr_scale=seen.lr_scale,
        clip_share=seen.clip_share,
        loss_scale=seen.loss_scale,
        longest=max(lengths["current"], default=None),
        longest_before=max(lengths["previous"], default=None),
        repeated=sorted({i for i in ids if ids.count(i) > 1}),
        odd_modules=[f"{m.name} ({m.note})" for m in seen.modules if m.note],
        epoch=seen.epoch,
        rows=seen.rows,
    )


def to_json(report: AnomalyReport) -> bytes:
    """Encode a report as readable JSON; NaN and infinities become the strings nan, inf and -inf."""
    return msgspec.json.format(msgspec.json.encode(_spell(msgspec.to_builtins(report))))


def from_json(data: bytes) -> AnomalyReport:
    """Decode a report from JSON; unknown fields, as of other versions, are ignored.

    Raises:
        msgspec.DecodeError: the data is not JSON, or (as `ValidationError`) not a report.
    """
    return msgspec.convert(msgspec.json.decode(data), AnomalyReport, strict=False)


def _spell(value: Any) -> Any:
    """Replace the numbers that JSON does not have by strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _spell(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_spell(item) for item in value]
    return value
