"""Doubles and builders for tests of the monitoring parts: a log at a chosen step, ranks, alerts."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from fttui.engine.core.anomaly import ALARM, Alert, AlertVerdict, Detector
from fttui.engine.core.reports.anomaly_report import AnomalyReport, from_json
from fttui.engine.data.batches.batch_source import SeenExamples
from fttui.engine.data.tokens.examples import TextExample
from fttui.engine.protocol.events import AnyEvent, StepFinished
from fttui.engine.run.checkpoint_store import CheckpointStore, Manifest
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.train.distributed.agreement import SingleRank
from fttui.engine.train.event_log import EventLog

E = TypeVar("E")


class LogAtStep:
    """An event log without a journal, at a step that the test sets, and the events it recorded."""

    def __init__(self, step: int = 0, timeline: int = 1) -> None:
        self.events: list[AnyEvent] = []
        self.log = EventLog(None, timeline=timeline)
        self.at = step
        self.log.listen(self.events.append)

    @property
    def at(self) -> int:
        """The step that events are recorded at."""
        return self.log.step

    @at.setter
    def at(self, step: int) -> None:
        self.log.position.step = step

    def of(self, kind: type[E]) -> list[E]:
        """Return the recorded events of a kind."""
        return [event for event in self.events if isinstance(event, kind)]


class Ranks(SingleRank):
    """An agreement that notes its collectives; on other ranks than 0 it answers as rank 0 would."""

    def __init__(self, rank: int = 0, shared: list[bytes] | None = None, *others: bytes) -> None:
        self.rank = rank
        self.shared = shared or []
        """On rank 0 what it shared; on other ranks what rank 0 shares, taken in order."""
        self.gathered: list[bytes] = []
        self._others = others

    def share(self, data: bytes) -> bytes:
        if self.rank:
            return self.shared.pop(0)
        self.shared.append(data)
        return data

    def gather(self, data: bytes) -> list[bytes]:
        self.gathered.append(data)
        return [data, *self._others]


class ScriptedDetector(Detector):
    """A detector that says what the test has put into it."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[dict[str, Any]] = []
        self.alerts: list[Alert] = []
        self.verdicts: list[AlertVerdict] = []
        self.usual: float | None = None
        self.back: set[str] = set()

    def back_before(self) -> set[str]:
        return self.back

    def update(self, record: dict[str, Any]) -> list[Alert]:
        self.records.append(record)
        found, self.alerts = self.alerts, []
        return found

    def take_verdicts(self) -> list[AlertVerdict]:
        found, self.verdicts = self.verdicts, []
        return found

    last_verdicts = take_verdicts

    def usual_up_to(self) -> float | None:
        return self.usual


class Words:
    """A tokenizer whose tokens are their numbers."""

    def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
        assert skip_special_tokens
        return "\n ".join(map(str, ids))


def new_run(path: Path) -> RunDirectory:
    run = RunDirectory(path / "run-1")
    run.reports.mkdir(parents=True)
    run.checkpoints.mkdir()
    return run


def report_of(run: RunDirectory, name: str) -> AnomalyReport:
    return from_json((run.reports / f"{name}.json").read_bytes())


def page_of(run: RunDirectory, name: str) -> str:
    return (run.reports / f"{name}.md").read_text()


def alert(kind: str = "spike", step: int = 100, severity: str = ALARM, **more: Any) -> Alert:
    headline = more.pop("headline", f"{kind} at {step}")
    return Alert(
        id=f"{kind}-{step}", kind=kind, severity=severity, step=step, headline=headline, **more
    )


def verdict(of: str, how: str = "recovered", step: int = 130) -> AlertVerdict:
    return AlertVerdict(id=of, verdict=how, step=step, level_before=1.0, level_after=1.0)


def finished(loss: float = 1.0, norm: float | None = 1.0, **more: Any) -> StepFinished:
    return StepFinished(**{"lr": 1e-4, **more}, loss=loss, grad_norm=norm)


def seen(current: str = "now", previous: str = "before") -> SeenExamples:
    return SeenExamples([example(current)], [example(previous)])


def example(name: str, tokens: int = 3) -> TextExample:
    return TextExample(name, list(range(tokens)), list(range(tokens)))


def checkpoint(
    run: RunDirectory, step: int, *, name: str = "", number: int | None = None, **more: Any
) -> Manifest:
    """Write the manifest of a good checkpoint."""
    store = CheckpointStore(run)
    manifest = Manifest(
        name=name or f"step-{step}",
        step=step,
        timeline=more.pop("timeline", 1),
        time=float(step),
        world_size=1,
        incarnation=1,
        files={},
        number=step if number is None else number,
        **more,
    )
    store.path(manifest.name).mkdir(exist_ok=True)
    store.commit(manifest)
    return manifest
