"""Anomaly reporter: gathers evidence on every rank, writes one report per alert, announces it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from ...core.anomaly import ALARM, WATCH, Alert
from ...core.meters import RecentNorms
from ...core.recovery import RecoveryForecast
from ...core.reports.advice import LrRise
from ...core.reports.anomaly_report import (
    AnomalyReport,
    Evidence,
    LrChange,
    Module,
    build_report,
    to_json,
    top_modules,
)
from ...core.reports.curve_plot import CurvePoint
from ...core.reports.headline import odd_records
from ...core.reports.page import to_markdown
from ...core.reports.row_losses import RAISED_STEPS, Rise, RowEvidence, weigh
from ...core.retention import EVAL_TOLERANCE
from ...data.batches.batch_source import SeenExamples
from ...protocol.commands import Recover, ResetLr, Rollback, ScaleLr, SetLr
from ...protocol.event_parts import RecommendedCommand
from ...protocol.events import (
    AnomalyRaised,
    AnomalyResolved,
    AnyEvent,
    AutopilotDecided,
    CommandApplied,
    CulpritsFound,
    GradientsMeasured,
    RolledBack,
    StepFinished,
)
from ...protocol.step_memory import memory_in_use
from ...run.checkpoint_store import Manifest
from ...run.run_dir import RunDirectory
from ..distributed.agreement import Agreement
from ..event_log import EventLog
from .culprit_report import CulpritReports
from .step_rows import RowLosses, RowReader, StepRows

_INTERVENTIONS_KEPT = 20
_CURVE_STEPS = 64
"""Steps of the curve before an alert, and after it once it has its verdict."""


class AnomalyReporter:
    """Writes one report per alert into `reports/`, with evidence from the events of the run."""

    def __init__(
        self,
        run: RunDirectory,
        event_log: EventLog,
        tokenizer: Any,
        agreement: Agreement,
        clock: Callable[[], float] = time.time,
        row_losses: RowLosses | None = None,
    ) -> None:
        self._run = run
        self._event_log = event_log
        self._reader = RowReader(agreement, tokenizer, row_losses)
        self._agreement = agreement
        self._clock = clock
        self._steps: deque[StepFinished] = deque(maxlen=2)
        self._curve: deque[CurvePoint] = deque(maxlen=_CURVE_STEPS)
        self._lr_rise: LrRise | None = None
        """The newest rise of the learning rate; None once a recovery has set the rate."""
        self._lr_changes: deque[LrChange] = deque(maxlen=_INTERVENTIONS_KEPT)
        self._tried: deque[str] = deque(maxlen=_INTERVENTIONS_KEPT)
        self._rollbacks = 0
        self._back_to = 0
        self._newest: tuple[str, AnomalyReport] | None = None
        """The newest alarm: public id and report."""
        self._beside: dict[str, AnomalyReport] = {}
        """Earlier alarms without a rollback, by public id; the next one is added to them all."""
        self._culprits = CulpritReports(run)
        self._flow: GradientsMeasured | None = None
        self._flow_step = -1
        event_log.listen(self._follow)

    @property
    def names_modules(self) -> bool:
        """Whether the newest alarm's report has the gradient norms of modules."""
        return self._newest is not None and bool(self._newest[1].evidence.modules)

    def _follow(self, event: AnyEvent) -> None:
        match event:
            case StepFinished():
                self._steps.append(event)
                point = CurvePoint(self._event_log.step, event.loss_or_nan, event.grad_norm)
                self._curve.append(point)
            case AutopilotDecided(decision=decision, command=command, reason=why):
                self._amend(autopilot=f"{decision} `{command}`: {why}")
            case CommandApplied():
                self._note_command(event)
            case RolledBack(to_step=to_step):
                # A rollback to a step after the newest alarm was made for another reason.
                self._rollbacks += self._newest is not None and self._newest[1].step > to_step
                self._back_to = to_step
                if (rise := self._lr_rise) is not None:  # the rate stays as it is
                    step = min(rise.step, to_step)
                    self._lr_rise = msgspec.structs.replace(rise, step=step)
                kept = [point for point in self._curve if point.step <= to_step]
                self._curve = deque(kept, maxlen=_CURVE_STEPS)
            case CulpritsFound():
                self._add_culprits(event)
            case AnomalyResolved(id=public_id, verdict=verdict):
                self._resolve(public_id, verdict)
            case GradientsMeasured():
                self._flow, self._flow_step = event, self._event_log.step
                self._add_modules()
            case _:
                pass

    def _add_culprits(self, event: CulpritsFound) -> None:
        """Add what a search has found to the report of its anomaly, also of an earlier process."""
        try:
            self._culprits.add(event, writes=self._agreement.rank == 0)
        except OSError as error:
            self._event_log.log("error", f"report {event.anomaly} not written: {error}")

    def _note_command(self, event: CommandApplied) -> None:
        """Keep a command for the next reports; a rollback is also added to those of open alarms."""
        step, text = self._event_log.step, event.command
        self._tried.append(f"step {step}: {text}")
        command = event.typed
        if isinstance(command, ScaleLr | SetLr | ResetLr) and _raises(event):
            self._lr_rise = self._risen(event)
        if isinstance(command, Recover) or (
            isinstance(command, Rollback) and command.lr_scale is not None
        ):
            self._lr_rise = None
        if isinstance(command, Recover | Rollback):
            self._answer(f"step {event.old} → {event.new}, `{text}`, {event.issuer}")
        match command:
            case Recover() | Rollback(lr_scale=float()):
                self._lr_changes.append(LrChange(step=step, text=text))
            case ScaleLr() | SetLr() | ResetLr():
                self._lr_changes.append(LrChange(step=step, text=f"{text} ({event.new})"))

    def _resolve(self, public_id: str, verdict: str) -> None:
        """Add the verdict on the newest alarm, and the steps since it, to its report."""
        if self._newest is None or self._newest[0] != public_id:
            return
        seen = self._newest[1].evidence
        newest = seen.curve[-1].step if seen.curve else 0
        curve = [*seen.curve, *(point for point in self._curve if point.step > newest)]
        self._amend(verdict=verdict, evidence=msgspec.structs.replace(seen, curve=curve))

    def _add_modules(self) -> None:
        """Add the first gradient flow measured after the newest alarm, if its report has none."""
        step = self._flow_step
        if self._newest is not None and not self.names_modules and step > self._newest[1].step:
            evidence = self._newest[1].evidence
            self._amend(
                evidence=msgspec.structs.replace(
                    evidence, modules=self._modules(), modules_step=step
                )
            )

    def _amend(self, **changes: Any) -> None:
        """Change fields of the newest alarm's report, if there is one; rank 0 writes it again."""
        if self._newest is None:
            return
        public_id, report = self._newest
        self._newest = public_id, msgspec.structs.replace(report, **changes)
        if self._agreement.rank == 0:
            self._write(*self._newest)

    def _answer(self, initiated: str) -> None:
        """Add a rollback to the reports of the newest alarm and of earlier alarms that it undoes.

        Earlier alarms no longer wait for a rollback then.
        """
        self._amend(initiated=initiated)
        for public_id, report in self._beside.items():
            if self._agreement.rank == 0 and report.step > self._back_to:
                self._write(public_id, msgspec.structs.replace(report, initiated=initiated))
        self._beside.clear()

    def calm(self) -> None:
        """Forget what was tried and which alarms wait for a rollback, because an incident ended."""
        self._rollbacks = 0
        self._tried.clear()
        self._beside.clear()

    @property
    def computes_losses(self) -> bool:
        """Whether `look` can run the model to compute losses of rows."""
        return self._reader.can_compute

    def look(self, seen: SeenExamples, *, losses: bool) -> StepRows:
        """Return what all ranks know about the rows of this step and of the step before.

        All ranks call this together.

        Args:
            seen: the examples that this rank trained on.
            losses: whether to compute the losses of rows, by passes without gradients.
        """
        return self._reader.read(seen, self._modules(), losses=losses)

    def weigh(
        self, alert: Alert, rows: StepRows | None, usual: float | None
    ) -> tuple[Alert, RowEvidence | None]:
        """Return the alert, explained by an odd record if there is one, and what the rows show.

        An explained alert has the severity watch; a divergence is not explained. The second value
        is None if the losses of rows or the usual loss are not known.

        Args:
            alert: the alert.
            rows: the rows of its step; None for an alert that has none.
            usual: the usual loss at present; None while it is unknown.
        """
        level = alert.baseline if alert.kind in ("spike", "divergence") else usual
        if rows is None or not rows.rows or level is None or not self._steps:
            return alert, None
        risen = self._risen_lately(alert.step)
        rise = Rise(
            level=level,
            loss=self._steps[-1].loss_or_nan,
            previous_loss=self._previous_loss,
            lr_raised="" if risen is None else f"{risen.command} at step {risen.step}",
        )
        found = weigh(rows.rows, rise)
        if not found.explained_by or alert.kind == "divergence":
            return alert, found
        return msgspec.structs.replace(
            alert,
            severity=WATCH,
            explained_by=found.explained_by,
            headline=f"{alert.headline}; {odd_records(found)}: {found.explained_by}",
        ), found

    @property
    def _previous_loss(self) -> float | None:
        return self._steps[0].loss if len(self._steps) > 1 else None

    def rate_was_raised(self, step: int) -> bool:
        """Whether the learning rate was raised shortly before a step, and not lowered since."""
        return self._risen_lately(step) is not None

    def _risen_lately(self, step: int) -> LrRise | None:
        rise = self._lr_rise
        return rise if rise is not None and 0 <= step - rise.step < RAISED_STEPS else None

    def _risen(self, event: CommandApplied) -> LrRise:
        """Return how far commands in a row raised the rate, from that before the first one.

        A rate that no journal records is taken to be that of the schedule.
        """
        step, earlier = self._event_log.step, self._risen_lately(self._event_log.step)
        before = 1.0 if event.previous is None else event.previous.lr_scale
        if earlier is not None:
            before = min(before, earlier.before)
        return LrRise(step=step, command=event.command, before=before)

    def report(
        self,
        alert: Alert,
        *,
        norms: RecentNorms,
        way_back: Manifest | None,
        forecast: RecoveryForecast,
        rows: StepRows | None = None,
        weighed: RowEvidence | None = None,
        guard: str = "",
    ) -> None:
        """Write an alert's report on rank 0 and journal `AnomalyRaised`.

        The report is named by the public id of the alert.

        Args:
            alert: the alert, with its incident.
            norms: recent gradient norms.
            way_back: the checkpoint to return to; None if there is no good one.
            forecast: what the command `recover` would do.
            rows: the rows that the ranks trained on; None leaves samples out.
            weighed: what the losses of the rows say; None if they are not known.
            guard: why the guard refused the update of the step; empty if it was applied.
        """
        evidence = self._evidence(norms, way_back, rows or StepRows(modules=self._modules()), guard)
        evidence = msgspec.structs.replace(evidence, recovery=forecast, rows=weighed)
        public_id = self.public_id(alert)
        report = msgspec.structs.replace(build_report(alert, evidence), incident=alert.incident)
        if alert.severity == ALARM:
            if self._newest is not None and not self._newest[1].initiated:
                self._beside[self._newest[0]] = self._newest[1]
            self._newest = public_id, report
        if self._agreement.rank == 0:
            self._write(public_id, report)
        self._event_log.record(_raised(alert, public_id, report))

    def public_id(self, alert: Alert) -> str:
        """Return the id of an alert in journal and reports: with the timeline after a rollback."""
        timeline = self._event_log.timeline
        return alert.id if timeline == 1 else f"{alert.id}-t{timeline}"

    def _evidence(
        self, norms: RecentNorms, way_back: Manifest | None, rows: StepRows, guard: str
    ) -> Evidence:
        last = self._steps[-1] if self._steps else StepFinished(loss=float("nan"))
        return Evidence(
            time=self._clock(),
            run=self._run.id,
            timeline=self._event_log.timeline,
            epoch=last.epoch,
            current_loss=last.loss,
            previous_loss=self._previous_loss,
            grad_norm=last.grad_norm,
            grad_normal=norms.normal_range(),
            lr=last.lr,
            lr_scale=last.lr_scale,
            lr_changes=list(self._lr_changes),
            lr_rise=self._risen_lately(self._event_log.step),
            clip=last.clip,
            clip_share=norms.clip_share(),
            mem_used_bytes=memory_in_use(last),
            mem_total_bytes=last.mem_total_bytes,
            loss_scale=last.extra.get("loss_scale"),
            rank_s=list(last.rank_s),
            rank_mem_bytes=list(last.rank_mem_bytes),
            modules=rows.modules,
            samples=rows.samples,
            rows_missing=rows.missing,
            curve=list(self._curve),
            tried=list(self._tried),
            rollbacks=self._rollbacks,
            checkpoint=way_back.name if way_back else None,
            checkpoint_step=way_back.step if way_back else None,
            checkpoint_why=_why_good(way_back) if way_back else "",
            guard=guard,
        )

    def _modules(self) -> list[Module]:
        """Return the gradient flow of the current step's update; empty if it was not measured."""
        flow = self._flow
        if flow is None or self._flow_step != self._event_log.step:
            return []
        notes = dict.fromkeys(flow.dead, "dead") | dict.fromkeys(flow.exploding, "exploding")
        rows = [
            Module(m.module, m.grad_norm, m.update_norm, notes.get(m.module, ""))
            for m in flow.modules
        ]
        return top_modules(rows)

    def _write(self, name: str, report: AnomalyReport) -> None:
        try:
            content = self._culprits.whole(name, to_json(report))
            self._run.write(self._run.reports / f"{name}.json", content)
            page = to_markdown(report) + self._culprits.section(name)
            self._run.write(self._run.reports / f"{name}.md", page.encode())
        except OSError as error:
            self._event_log.log("error", f"report {name} not written: {error}")


def _raises(event: CommandApplied) -> bool:
    """Whether a command has raised the learning rate; True if its settings are not recorded."""
    if event.settings is None or event.previous is None:
        return True
    return event.settings.lr_scale > event.previous.lr_scale


def _raised(alert: Alert, public_id: str, report: AnomalyReport) -> AnomalyRaised:
    """Return the event that announces an alert and its report."""
    return AnomalyRaised(
        id=public_id,
        kind=alert.kind,
        severity=alert.severity,
        headline=alert.headline,
        value=alert.value,
        baseline=alert.baseline,
        z=alert.z,
        ratio=alert.ratio,
        report=public_id,
        actions=[action.command for action in report.actions],
        checkpoint=report.evidence.checkpoint,
        incident=report.incident,
        recommended=[
            RecommendedCommand(text=action.command, why=action.why, command=action.typed)
            for action in report.actions
        ],
        explained_by=alert.explained_by,
        **_recurrence(alert),
    )


def _recurrence(alert: Alert) -> dict[str, Any]:
    """Return the fields of an event that say how often the peaks of an alert recur."""
    again = alert.again
    if again is None:
        return {}
    return {"repeats": again.kind, "peaks": again.peaks, "every_steps": again.every}


def _why_good(manifest: Manifest) -> str:
    """Describe why a checkpoint is a good rollback target."""
    parts = ["before the first warning", "no alarm in the 20 steps before this checkpoint"]
    if manifest.loss is not None:
        parts.append(f"loss {manifest.loss:.4g}")
    if manifest.eval_loss is not None:
        near = f"at most {EVAL_TOLERANCE:.0%} above the lowest"
        parts.append(f"evaluation loss {manifest.eval_loss:.4g}, {near}")
    return ", ".join(parts)
