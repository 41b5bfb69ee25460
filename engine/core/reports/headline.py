"""The first lines of a report: what happened, and what to do, in whole sentences."""

from __future__ import annotations

from .anomaly_report import AnomalyReport
from .row_losses import BATCH, ONE_RECORD, ROWS, WEIGHTS, RowEvidence, named

NAMES = {
    "spike": "Loss spike",
    "divergence": "Divergence",
    "grad_explosion": "Gradient explosion",
    "nonfinite": "Value that is not finite",
    "plateau": "Plateau",
    "dead": "No gradient",
    "overfit": "Overfitting",
    "forgetting": "Forgetting",
    "throughput_drop": "Lower throughput",
    "collapse": "Collapse of representations",
    "lr_misconfig": "Unusable learning rate",
    "straggler": "Slow rank",
    "vram_leak": "Memory leak",
    "unstable": "Recurring peak",
}
"""Name of each kind of alert, as the first words of its report."""


def title(report: AnomalyReport) -> str:
    """Return the first line: the kind of alert, its step, and what to do."""
    name = NAMES.get(report.kind, report.kind.replace("_", " ").capitalize())
    return f"{name} at step {report.step}: {_todo(report)}"


def _todo(report: AnomalyReport) -> str:
    if report.initiated:
        return "rolled back"
    if report.explained_by:
        return f"nothing to do, {odd_records(report.evidence.rows)}"
    if report.verdict == "recovered":
        return "recovered, nothing to do"
    if not report.actions:
        return "no command helps"
    command = f"`{report.actions[0].command}`"
    if report.kind == "spike" and report.verdict != "not recovered":
        return f"{command}, unless the loss returns to its usual level"
    return command


def odd_records(rows: RowEvidence | None) -> str:
    """Return a clause that says how many odd records explain an alert."""
    count = len(rows.odd) if rows is not None else 1
    return "one odd record explains it" if count == 1 else f"{count} odd records explain it"


def what_happened(report: AnomalyReport) -> list[str]:
    """Return sentences: what changed, what the rows say, and what has been done about it."""
    found = [_change(report), *_rows(report.evidence.rows), _guard(report)]
    if report.autopilot:
        found.append(f"The autopilot's decision: {report.autopilot}.")
    if report.initiated:
        found.append(f"A rollback was made: {report.initiated}.")
    if report.verdict:
        found.append(f"Verdict: {report.verdict}.")
    return [sentence for sentence in found if sentence]


def _change(report: AnomalyReport) -> str:
    value, usual = report.value, report.level_before
    what = {"spike": "The loss jumped", "grad_explosion": "The gradient norm jumped"}
    if report.kind == "divergence" and value is not None and usual is not None:
        return f"The loss has risen from {usual:.4g} to {value:.4g} and stays there."
    if report.kind in what and value is not None and usual:
        times = f", {value / usual:.3g} times its usual {usual:.4g}" if usual > 0 else ""
        return f"{what[report.kind]} to {value:.4g}{times}."
    text = report.issue
    return f"{text[:1].upper()}{text[1:]}."


def _guard(report: AnomalyReport) -> str:
    guard = report.evidence.guard
    return f"The update was refused, so the weights are unchanged ({guard})." if guard else ""


def _rows(rows: RowEvidence | None) -> list[str]:
    """Return what the losses of rows say, one sentence per finding; empty if they are not known."""
    if rows is None or rows.current is None:
        return []
    found = [_origin(rows)]
    if rows.blocked:
        found.append(f"This is probably not the cause, because {rows.blocked}.")
    if rows.rank is not None:
        found.append(f"All odd rows are on rank {rows.rank}.")
    if rows.source:
        found.append(f"All odd rows are from {rows.source}.")
    return found


def _origin(rows: RowEvidence) -> str:
    assert rows.current is not None
    count = rows.current.rows
    names = named([f"`{name}`" for name in rows.odd])
    texts = {
        ONE_RECORD: (
            f"The losses of all rows but {names} are as usual, also in the step before, "
            "so the weights are unharmed."
            if rows.previous is not None
            else f"All rows of this step but {names} have their usual loss."
        ),
        WEIGHTS: f"The weights are damaged: {_worse(rows)}.",
        BATCH: (
            f"All {count} rows of this step are affected, while those of the step before are as "
            "usual: the data of this step is bad, or a divergence begins."
        ),
        ROWS: f"All {count} rows of this step are affected.",
    }
    usual = "Computed again, the rows of this step have their usual losses."
    return texts.get(rows.origin, usual)


def _worse(rows: RowEvidence) -> str:
    before, trained = rows.previous, rows.previous_loss
    if before is None or trained is None:
        return "the losses of the previous step's rows are higher than when they were trained"
    return (
        f"the previous step's rows have a loss of {before.mean:.4g} now and had {trained:.4g} "
        "when they were trained"
    )
