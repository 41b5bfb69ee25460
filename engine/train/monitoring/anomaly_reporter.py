"""Anomaly reporter: gathers evidence on every rank, writes one report per alert, announces it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ...core.anomaly import ALARM, Alert
from ...core.incidents import Incidents
from ...core.meters import RecentNorms
from ...core.recovery import RecoveryForecast
from ...core.reports.anomaly_report import (
    AnomalyReport,
    Evidence,
    LrChange,
    Module,
    TrainingSample,
    build_report,
    to_json,
    to_markdown,
    top_modules,
)
from ...data.batches.batch_source import SeenExamples
from ...data.tokens.examples import Example, PairExample
from ...protocol.commands import Recover, ResetLr, Rollback, ScaleLr, SetLr
from ...protocol.events import (
    AnomalyRaised,
    AnyEvent,
    AutopilotDecided,
    CommandApplied,
    GradientsMeasured,
    RolledBack,
    StepFinished,
)
from ...protocol.step_memory import memory_in_use
from ...run.checkpoint_store import Manifest
from ...run.run_dir import RunDirectory
from ..distributed.agreement import Agreement
from ..event_log import EventLog

_SAMPLES_PER_BATCH = 8
_PREVIEW_TOKENS = 40
_INTERVENTIONS_KEPT = 20
_gathered = msgspec.msgpack.Decoder(tuple[list[TrainingSample], list[Module]])


class AnomalyReporter:
    """Writes one report per alert into `reports/`, with evidence from the events of the run."""

    def __init__(
        self,
        run: RunDirectory,
        event_log: EventLog,
        tokenizer: Any,
        agreement: Agreement,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._run = run
        self._event_log = event_log
        self._tokenizer = tokenizer
        self._agreement = agreement
        self._clock = clock
        self._steps: deque[StepFinished] = deque(maxlen=2)
        self._lr_changes: deque[LrChange] = deque(maxlen=_INTERVENTIONS_KEPT)
        self._tried: deque[str] = deque(maxlen=_INTERVENTIONS_KEPT)
        self._rollbacks = 0
        self._back_to = 0
        self._incidents = Incidents()
        self._newest: tuple[str, AnomalyReport] | None = None
        """The newest alarm: public id and report."""
        self._beside: dict[str, AnomalyReport] = {}
        """Earlier alarms without a rollback, by public id; the next one is added to them all."""
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
            case AutopilotDecided(decision=decision, command=command, reason=why):
                self._amend(autopilot=f"{decision} `{command}`: {why}")
            case CommandApplied():
                self._note_command(event)
            case RolledBack(to_step=to_step):
                # A rollback to a step after the newest alarm was made for another reason.
                self._rollbacks += self._newest is not None and self._newest[1].step > to_step
                self._back_to = to_step
            case GradientsMeasured():
                self._flow, self._flow_step = event, self._event_log.step
                self._add_modules()
            case _:
                pass

    def _note_command(self, event: CommandApplied) -> None:
        """Keep a command for the next reports; a rollback is also added to those of open alarms."""
        step, text = self._event_log.step, event.command
        self._tried.append(f"step {step}: {text}")
        command = event.typed
        if isinstance(command, Recover | Rollback):
            self._answer(f"step {event.old} → {event.new}, `{text}`, {event.issuer}")
        match command:
            case Recover() | Rollback(lr_scale=float()):
                self._lr_changes.append(LrChange(step=step, text=text))
            case ScaleLr() | SetLr() | ResetLr():
                self._lr_changes.append(LrChange(step=step, text=f"{text} ({event.new})"))

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
        """Change fields of the newest alarm's report and write it again."""
        if self._newest is None:
            return
        public_id, report = self._newest
        self._newest = public_id, msgspec.structs.replace(report, **changes)
        if self._agreement.rank == 0:
            self._write(*self._newest)

    def _answer(self, initiated: str) -> None:
        """Add a rollback to the reports of all alarms that it undoes."""
        self._amend(initiated=initiated)
        for public_id, report in self._beside.items():
            if self._agreement.rank == 0 and report.step > self._back_to:
                self._write(public_id, msgspec.structs.replace(report, initiated=initiated))
        self._beside.clear()

    def calm(self) -> None:
        """End the incident: forget what was tried and which alarms wait for a rollback."""
        self._incidents.end()
        self._rollbacks = 0
        self._tried.clear()
        self._beside.clear()

    def report(
        self,
        alert: Alert,
        *,
        norms: RecentNorms,
        way_back: Manifest | None,
        forecast: RecoveryForecast,
        seen: SeenExamples | None = None,
        guard: str = "",
    ) -> str:
        """Write an alert's report on rank 0, journal `AnomalyRaised`, and return the public id.

        Args:
            alert: the alert.
            norms: recent gradient norms.
            way_back: the checkpoint to return to; None if there is no good one.
            forecast: what the command `recover` would do.
            seen: the examples that this rank trained on; None leaves samples out.
            guard: why the guard refused the update of the step; empty if it was applied.

        Returns:
            The id of the alert, with the timeline added after a rollback; the report's file name.
        """
        evidence = self._evidence(norms, way_back, seen, guard)
        evidence = msgspec.structs.replace(evidence, recovery=forecast)
        timeline = self._event_log.timeline
        public_id = alert.id if timeline == 1 else f"{alert.id}-t{timeline}"
        incident = self._incidents.join(alert, public_id)
        report = msgspec.structs.replace(build_report(alert, evidence), incident=incident)
        if alert.severity == ALARM:
            if self._newest is not None and not self._newest[1].initiated:
                self._beside[self._newest[0]] = self._newest[1]
            self._newest = public_id, report
        if self._agreement.rank == 0:
            self._write(public_id, report)
        self._event_log.record(
            AnomalyRaised(
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
                incident=incident,
            )
        )
        return public_id

    def _evidence(
        self,
        norms: RecentNorms,
        way_back: Manifest | None,
        seen: SeenExamples | None,
        guard: str,
    ) -> Evidence:
        last = self._steps[-1] if self._steps else StepFinished(loss=float("nan"))
        previous = self._steps[0].loss if len(self._steps) > 1 else None
        samples, modules = self._gather(seen)
        return Evidence(
            time=self._clock(),
            run=self._run.id,
            timeline=self._event_log.timeline,
            epoch=last.epoch,
            current_loss=last.loss,
            previous_loss=previous,
            grad_norm=last.grad_norm,
            grad_normal=norms.normal_range(),
            lr=last.lr,
            lr_scale=last.lr_scale,
            lr_changes=list(self._lr_changes),
            clip=last.clip,
            clip_share=norms.clip_share(),
            mem_used_bytes=memory_in_use(last),
            mem_total_bytes=last.mem_total_bytes,
            loss_scale=last.extra.get("loss_scale"),
            rank_s=list(last.rank_s),
            rank_mem_bytes=list(last.rank_mem_bytes),
            modules=modules,
            samples=samples,
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

    def _gather(self, seen: SeenExamples | None) -> tuple[list[TrainingSample], list[Module]]:
        """Return the samples of every rank, and the modules of the first rank that has any.

        A collective, except without examples: then this rank's modules are returned alone.
        """
        if seen is None:
            return [], self._modules()
        mine = [
            *self._describe("current", seen.current),
            *self._describe("previous", seen.previous),
        ]
        every = self._agreement.gather(msgspec.msgpack.encode((mine, self._modules())))
        found = [_gathered.decode(data) for data in every]
        modules = next((modules for _, modules in found if modules), [])
        return [sample for samples, _ in found for sample in samples], modules

    def _describe(self, batch: str, examples: Sequence[Example]) -> list[TrainingSample]:
        return [
            TrainingSample(
                rank=self._agreement.rank,
                batch=batch,
                id=example.id,
                tokens=example.length,
                preview=self._preview(example),
            )
            for example in examples[:_SAMPLES_PER_BATCH]
        ]

    def _preview(self, example: Example) -> str:
        if isinstance(example, PairExample):
            return f"{self._decode(example.anchor)} → {self._decode(example.positive)}"
        return self._decode(example.input_ids)

    def _decode(self, ids: list[int]) -> str:
        text = str(self._tokenizer.decode(ids[:_PREVIEW_TOKENS], skip_special_tokens=True))
        return " ".join(text.split()) + (" …" if len(ids) > _PREVIEW_TOKENS else "")

    def _write(self, name: str, report: AnomalyReport) -> None:
        try:
            self._run.write(self._run.reports / f"{name}.json", to_json(report))
            self._run.write(self._run.reports / f"{name}.md", to_markdown(report).encode())
        except OSError as error:
            self._event_log.log("error", f"report {name} not written: {error}")


def _why_good(manifest: Manifest) -> str:
    """Describe why a checkpoint is a good rollback target."""
    parts = ["before the first warning", "no alarm in the 20 steps before this checkpoint"]
    if manifest.loss is not None:
        parts.append(f"loss {manifest.loss:.4g}")
    if manifest.eval_loss is not None:
        parts.append(f"evaluation {manifest.eval_loss:.4g}, not worse than the best")
    return ", ".join(parts)
