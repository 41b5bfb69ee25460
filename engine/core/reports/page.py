"""The page of an anomaly report in Markdown, for a person who has to decide at once.

What happened and what to do comes first, then the evidence with a plot, then the samples, then what
each recommended command will do, then the rest.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime

from .anomaly_report import AnomalyReport, Evidence, Module, TrainingSample
from .curve_plot import curve_plot
from .headline import title, what_happened
from .row_losses import CURRENT, PREVIOUS, RowSpan

PREVIEW_CHARACTERS = 240
"""Longest preview of a sample on the page."""
SAMPLES_SHOWN = 8
"""Samples of a batch on the page; the JSON has all that were kept."""


def to_markdown(report: AnomalyReport) -> str:
    """Return the report as a Markdown page, to read or to paste into an issue."""
    seen = report.evidence
    late = f", measured at step {seen.modules_step}" if seen.modules_step is not None else ""
    lines = [f"# {title(report)}", "", " ".join(what_happened(report))]
    if plot := curve_plot(seen.curve, report.step):
        lines += ["", "```text", *plot, "```"]
    lines += _section("Evidence", _facts(_evidence(report)))
    lines += _section("Samples", _samples(seen))
    lines += _section("Recommended commands", _actions(report))
    lines += _section("Likely causes", [f"{n}. {c}" for n, c in enumerate(report.causes, 1)])
    lines += _section("Tried before", [f"- {text}" for text in seen.tried])
    lines += _section(f"Modules{late}", [_module(module) for module in seen.modules])
    lines += _section("Run", _facts(_place(report)))
    return "\n".join(lines) + "\n"


def _facts(facts: list[tuple[str, str]]) -> list[str]:
    return [f"- **{name}:** {text}" for name, text in facts if text]


def _place(report: AnomalyReport) -> list[tuple[str, str]]:
    """Return which alert, run and time the report is about."""
    seen = report.evidence
    when = datetime.fromtimestamp(seen.time, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return [
        ("Alert", f"{report.kind.replace('_', ' ')} ({report.severity}): {report.issue}"),
        ("Step", str(report.step) + (f" (epoch {seen.epoch:.2f})" if seen.epoch else "")),
        ("Incident", _incident(report)),
        ("Run", f"{seen.run} (timeline {seen.timeline})" if seen.run else ""),
        ("Time", when),
    ]


def _incident(report: AnomalyReport) -> str:
    """Return which alert the incident began with; empty if it was this one."""
    began = report.incident not in ("", report.id, f"{report.id}-t{report.evidence.timeline}")
    return f"began with {report.incident}" if began else ""


def _evidence(report: AnomalyReport) -> list[tuple[str, str]]:
    seen = report.evidence
    return [
        ("Loss", _loss(report)),
        ("Gradient norm", _gradient(report)),
        ("Learning rate", _learning_rate(seen)),
        ("Clipping", _clipping(seen)),
        ("Good checkpoint", _checkpoint(seen)),
        ("Loss scale", _number(seen.loss_scale)),
        ("Memory", _memory(seen)),
        ("Memory by rank", ", ".join(f"{b / 2**30:.2f} GiB" for b in seen.rank_mem_bytes)),
        ("Seconds by rank", ", ".join(f"{s:.3g}" for s in seen.rank_s)),
    ]


def _loss(report: AnomalyReport) -> str:
    """Return the loss, the one before, and for an alert about the loss how far out it is."""
    seen = report.evidence
    parts = [
        _number(seen.current_loss),
        f"{seen.previous_loss:.4g} in the step before" if seen.previous_loss is not None else "",
        _level_now(report),
        *(_far_out(report) if report.kind in ("spike", "divergence") else ()),
    ]
    return ", ".join(part for part in parts if part)


def _far_out(report: AnomalyReport) -> list[str]:
    """Return the value of a spike or divergence as a multiple of the level before it, and in sd.

    The texts are empty for what is unknown.
    """
    return [
        f"×{report.ratio:.3g} of its usual value" if report.ratio is not None else "",
        f"{report.z:.1f} standard deviations of the noise" if report.z is not None else "",
    ]


def _level_now(report: AnomalyReport) -> str:
    """Return the level that the loss of a divergence has risen to, as text.

    Empty for other alerts, and if it is unknown or equals the current loss.
    """
    now = report.level_now
    known = now is not None and math.isfinite(now) and now != report.evidence.current_loss
    return f"now around {_number(now)}" if known and report.kind == "divergence" else ""


def _checkpoint(seen: Evidence) -> str:
    if not seen.checkpoint:
        return "none"
    return f"{seen.checkpoint}: {seen.checkpoint_why}" if seen.checkpoint_why else seen.checkpoint


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _gradient(report: AnomalyReport) -> str:
    """Return the gradient norm, its usual range, and for its explosion how far out it is."""
    seen = report.evidence
    if seen.grad_norm is None:
        return ""
    norm = _number(seen.grad_norm)
    if seen.grad_normal is not None:
        low, high = seen.grad_normal
        norm = f"{norm} (normal range {low:.4g} – {high:.4g})"
    far_out = _far_out(report) if report.kind == "grad_explosion" else []
    return ", ".join(part for part in (norm, *far_out) if part)


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


def _samples(seen: Evidence) -> list[str]:
    """Return lines about the samples of this and the previous step, the highest losses first.

    Of each step at most `SAMPLES_SHOWN` samples have a line; before them the losses are summed up.
    """
    lines = _spans(seen)
    for batch in (CURRENT, PREVIOUS):
        own = [sample for sample in seen.samples if sample.batch == batch]
        own.sort(key=lambda sample: -_size(sample.loss))
        odd = set(seen.rows.odd) if seen.rows is not None and batch == CURRENT else set()
        lines += [_sample(sample, odd=sample.name in odd) for sample in own[:SAMPLES_SHOWN]]
        if len(own) > SAMPLES_SHOWN:
            lines.append(f"- and {len(own) - SAMPLES_SHOWN} more of the {batch} step in the JSON")
    return lines


def _spans(seen: Evidence) -> list[str]:
    if seen.rows_missing:
        return [f"The losses of individual rows are not known: {seen.rows_missing}.", ""]
    if seen.rows is None or seen.rows.current is None:
        return []
    spans = [f"this step: {_span(seen.rows.current)}"]
    if seen.rows.previous is not None:
        spans.append(f"step before: {_span(seen.rows.previous)}")
    return [f"Losses of rows with the present weights: {'; '.join(spans)}.", ""]


def _span(span: RowSpan) -> str:
    return (
        f"{span.rows} rows, {span.lowest:.3g} to {span.highest:.3g}, half of them below "
        f"{span.median:.3g}"
    )


def _size(loss: float | None) -> float:
    """Return a key that orders samples by loss when they are sorted in descending order.

    A loss that is not finite comes first, an unknown one (None) last.
    """
    if loss is None:
        return -math.inf
    return loss if math.isfinite(loss) else math.inf


def _sample(sample: TrainingSample, *, odd: bool) -> str:
    loss = "" if sample.loss is None else f" loss {sample.loss:.4g},"
    mark = " **odd**," if odd else ""
    head = f"- {sample.batch}, rank {sample.rank}:{mark}{loss} `{sample.name}`, "
    head += f"{sample.tokens} tokens"
    preview = " ".join(sample.preview.split()).replace("`", "'")
    if len(preview) > PREVIEW_CHARACTERS:
        preview = preview[:PREVIEW_CHARACTERS] + "…"
    return f"{head}: `{preview}`" if preview else head


def _actions(report: AnomalyReport) -> list[str]:
    lines = [f"{n}. `{action.command}`: {action.why}" for n, action in enumerate(report.actions, 1)]
    advice = [report.advice] if report.advice and not report.explained_by else []
    if report.explained_by:
        advice = [
            "No command is needed: training continues, and the weights are unharmed. Look at the "
            "record before the next epoch trains on it again."
        ]
    return [*lines, *([""] if lines and advice else []), *advice]


def _section(title: str, lines: list[str]) -> list[str]:
    return ["", f"## {title}", "", *lines] if lines else []
