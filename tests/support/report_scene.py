"""The report of the spike of `live_spike`, as the engine would write it."""

from __future__ import annotations

import math

from fttui.engine.core.anomaly import ALARM, Alert
from fttui.engine.core.recovery import RecoveryAttempt, RecoveryForecast
from fttui.engine.core.reports.anomaly_report import (
    AnomalyReport,
    Evidence,
    LrChange,
    TrainingSample,
    build_report,
)
from fttui.engine.core.reports.curve_plot import CurvePoint
from fttui.engine.core.reports.row_losses import CURRENT, PREVIOUS, Rise, Row, RowEvidence, weigh

STEP = 1241
USUAL = [1.21, 1.34, 1.41, 1.52, 1.38, 1.29, 1.47, 1.44]
BAD = [9.4, 8.7, 9.9, 8.8, 9.1, 9.3, 8.6, 9.0]
TEXTS = ("\\x1b[0m GET /idx 404 %%%% 0x7f3a 0x7f3b 0x7f3c", "kw kw kw kw kw kw kw kw kw kw kw")


def spike_report(losses: list[float] | None = None) -> AnomalyReport:
    """Return the report of a spike at `STEP`.

    Args:
        losses: losses of the rows of that step; by default all are high.
    """
    losses = BAD if losses is None else losses
    mean = sum(losses) / len(losses)
    found = weigh(
        [*rows(losses, CURRENT, 800), *rows(USUAL, PREVIOUS, 92)],
        Rise(level=1.4, loss=mean, previous_loss=1.38),
    )
    alert = Alert(
        id=f"a{STEP}",
        kind="spike",
        severity=ALARM,
        step=STEP,
        headline=f"loss {mean:.4g} is ×{mean / 1.4:.3g} its level 1.4 (z 14)",
        value=mean,
        baseline=1.4,
        z=14.0,
        ratio=mean / 1.4,
        explained_by=found.explained_by,
    )
    return build_report(alert, evidence(found, mean, losses))


def evidence(found: RowEvidence, mean: float, losses: list[float]) -> Evidence:
    attempt = RecoveryAttempt(
        anomaly=f"a{STEP}", checkpoint="step-000800-t1", step=800, lr_scale=0.5, clip=1.12, skip=461
    )
    return Evidence(
        time=1_767_225_600.0,
        run="smollm2-pairs-20260101-000000",
        epoch=1.31,
        current_loss=mean,
        previous_loss=1.38,
        grad_norm=6.84,
        grad_normal=(0.31, 1.12),
        lr=8.7e-5,
        lr_changes=[LrChange(step=640, text="lr scale 0.5 (0.5)")],
        clip=1.0,
        clip_share=0.04,
        samples=samples(losses),
        rows=found,
        curve=curve(mean),
        checkpoint="step-000800-t1",
        checkpoint_step=800,
        checkpoint_why="before the first warning, loss 1.62",
        recovery=RecoveryForecast(attempt=attempt),
    )


def rows(losses: list[float], batch: str, line: int) -> list[Row]:
    return [
        Row(rank=0, batch=batch, id=str(n), place=f"crawl.jsonl:{line + n}", loss=loss)
        for n, loss in enumerate(losses)
    ]


def samples(losses: list[float]) -> list[TrainingSample]:
    return [
        TrainingSample(
            rank=0, batch=row.batch, id=row.id, tokens=48, place=row.place, loss=row.loss,
            preview=TEXTS[n % 2] if row.loss > 5 else "Write a haiku about the gradient. → Down …",
        )
        for n, row in enumerate([*rows(losses, CURRENT, 800), *rows(USUAL, PREVIOUS, 92)])
    ]  # fmt: skip


def curve(mean: float) -> list[CurvePoint]:
    before = [
        CurvePoint(step, 1.4 + 0.12 * math.sin(2.4 * step), 0.6 + 0.2 * math.sin(1.7 * step))
        for step in range(STEP - 63, STEP)
    ]
    return [*before, CurvePoint(STEP, mean, 6.84)]
