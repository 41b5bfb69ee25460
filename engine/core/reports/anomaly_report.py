"""Anomaly report: an alert with evidence, likely causes and actions, as JSON and Markdown."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import msgspec

from ..anomaly import Alert
from ..recovery import RecoveryForecast
from .advice import ADVICE, AdviceContext, Recommendation, recommend
from .causes import Signs, rank_causes

PREVIEW_CHARACTERS = 240
"""Longest preview of a sample on the page."""


class TrainingSample(msgspec.Struct, frozen=True, kw_only=True):
    """One training sample of the current or the previous batch."""

    rank: int
    batch: str
    """current or previous."""
    id: str
    tokens: int
    preview: str = ""
    """Beginning of the decoded text."""


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


def build_report(alert: Alert, evidence: Evidence) -> AnomalyReport:
    """Build the report of an alert from its evidence."""
    now = AdviceContext(
        lr_scale=evidence.lr_scale,
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
    )


def to_json(report: AnomalyReport) -> bytes:
    """Encode a report as readable JSON; NaN and infinities become the strings nan, inf and -inf."""
    return msgspec.json.format(msgspec.json.encode(_spell(msgspec.to_builtins(report))))


def from_json(data: bytes) -> AnomalyReport:
    """Decode a report from JSON; unknown fields, as of other versions, are ignored.

    Raises:
        msgspec.ValidationError: the data is not a report.
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


def to_markdown(report: AnomalyReport) -> str:
    """Return the report as a Markdown page, to read or to paste into an issue.

    What happened and what to do comes first, the numbers after it.
    """
    seen = report.evidence
    late = f", measured at step {seen.modules_step}" if seen.modules_step is not None else ""
    lines = ["# Training Anomaly Report", "", *_facts(_summary(report))]
    lines += _section("Recommended Actions", _actions(report))
    lines += _section("Likely Causes", [f"{n}. {c}" for n, c in enumerate(report.causes, 1)])
    lines += _section("Tried Before", [f"- {text}" for text in seen.tried])
    lines += _section("Evidence", _facts(_evidence(report)))
    lines += _section("Batch", [_sample(sample) for sample in seen.samples])
    lines += _section(f"Modules{late}", [_module(module) for module in seen.modules])
    return "\n".join(lines) + "\n"


def _facts(facts: list[tuple[str, str]]) -> list[str]:
    return [f"- **{name}:** {text}" for name, text in facts if text]


def _summary(report: AnomalyReport) -> list[tuple[str, str]]:
    seen = report.evidence
    when = datetime.fromtimestamp(seen.time, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return [
        ("Issue", f"{report.kind.replace('_', ' ')} ({report.severity}): {report.issue}"),
        ("Step", str(report.step) + (f" (epoch {seen.epoch:.2f})" if seen.epoch else "")),
        ("Incident", _incident(report)),
        ("Run", f"{seen.run} (timeline {seen.timeline})" if seen.run else ""),
        ("Timestamp", when),
        ("Guard", seen.guard),
        ("Last Good Checkpoint", _checkpoint(seen)),
        ("Autopilot", report.autopilot),
        ("Rollback Initiated", report.initiated),
    ]


def _incident(report: AnomalyReport) -> str:
    """Return which alert the incident began with; empty if it was this one."""
    began = report.incident not in ("", report.id, f"{report.id}-t{report.evidence.timeline}")
    return f"began with {report.incident}" if began else ""


def _evidence(report: AnomalyReport) -> list[tuple[str, str]]:
    seen = report.evidence
    return [
        ("Previous Loss", _number(seen.previous_loss)),
        ("Current Loss", _number(seen.current_loss)),
        ("Spike Magnitude", _magnitude(report)),
        ("Level Before", _number(report.level_before)),
        ("Level Now", _level_now(report)),
        ("Gradient Norm", _gradient(seen)),
        ("Learning Rate", _learning_rate(seen)),
        ("Clipping", _clipping(seen)),
        ("Loss Scale", _number(seen.loss_scale)),
        ("Memory", _memory(seen)),
        ("Memory by Rank", ", ".join(f"{b / 2**30:.2f} GiB" for b in seen.rank_mem_bytes)),
        ("Seconds by Rank", ", ".join(f"{s:.3g}" for s in seen.rank_s)),
    ]


def _level_now(report: AnomalyReport) -> str:
    """Return the present level as text; empty if it is unknown or equals the current loss."""
    now = report.level_now
    known = now is not None and math.isfinite(now) and now != report.evidence.current_loss
    return _number(now) if known else ""


def _checkpoint(seen: Evidence) -> str:
    if not seen.checkpoint:
        return "none"
    return f"{seen.checkpoint}: {seen.checkpoint_why}" if seen.checkpoint_why else seen.checkpoint


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _magnitude(report: AnomalyReport) -> str:
    parts = [
        f"×{report.ratio:.3g}" if report.ratio is not None else "",
        f"z {report.z:.1f}" if report.z is not None else "",
    ]
    return ", ".join(part for part in parts if part)


def _gradient(seen: Evidence) -> str:
    if seen.grad_norm is None:
        return ""
    if seen.grad_normal is None:
        return _number(seen.grad_norm)
    low, high = seen.grad_normal
    return f"{seen.grad_norm:.4g} (normal range {low:.4g} – {high:.4g})"


def _learning_rate(seen: Evidence) -> str:
    if seen.lr is None:
        return ""
    scale = f" (schedule × {seen.lr_scale:g})" if seen.lr_scale != 1 else ""
    changes = "; ".join(f"{change.text} at {change.step}" for change in seen.lr_changes)
    return f"{seen.lr:.3g}{scale}" + (f"; changed: {changes}" if changes else "")


def _clipping(seen: Evidence) -> str:
    if seen.clip is None:
        return "off"
    share = f", {seen.clip_share:.0%} of recent steps clipped" if seen.clip_share else ""
    return f"{seen.clip:.4g}{share}"


def _memory(seen: Evidence) -> str:
    if seen.mem_used_bytes is None:
        return ""
    total = f" / {seen.mem_total_bytes / 2**30:.2f}" if seen.mem_total_bytes else ""
    return f"{seen.mem_used_bytes / 2**30:.2f}{total} GiB"


def _module(module: Module) -> str:
    note = f" — {module.note}" if module.note else ""
    norms = f"gradient {module.grad_norm:.4g}, update {module.update_norm:.4g}"
    return f"- `{module.name}`: {norms}{note}"


def _sample(sample: TrainingSample) -> str:
    head = f"- {sample.batch}, rank {sample.rank}: `{sample.id}`, {sample.tokens} tokens"
    preview = " ".join(sample.preview.split()).replace("`", "'")
    if len(preview) > PREVIEW_CHARACTERS:
        preview = preview[:PREVIEW_CHARACTERS] + "…"
    return f"{head}: `{preview}`" if preview else head


def _actions(report: AnomalyReport) -> list[str]:
    lines = [f"{n}. `{action.command}`: {action.why}" for n, action in enumerate(report.actions, 1)]
    return [*lines, "", report.advice] if report.advice else lines


def _section(title: str, lines: list[str]) -> list[str]:
    return ["", f"## {title}", "", *lines] if lines else []
