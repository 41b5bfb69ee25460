"""MLflow: a run per timeline, nested under one run that stands for the whole.

Before and after a batch is sent, the tracker run is tagged with its last sequence number. If the
first tag is ahead of the second at the next opening, the batch was interrupted: the points that the
server has of it are read back and left out. Tags are keyed by sequence number.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

from ..deliveries import Delivery, Note, Points, RunFacts, Sample, Timeline
from ..sink import Count, TrackerDown
from .tracker_run import flat, tracker_run_name

_METRICS_AT_ONCE, _OTHERS_AT_ONCE = 1000, 100
_PARAMETER_CHARACTERS, _TAG_CHARACTERS = 500, 5000
"""Lowest limits among the servers in use; longer values would be refused."""
_SENDING, _THROUGH, _KEY = "fttui.sending", "fttui.through", "fttui.key"
_UNUSABLE = re.compile(r"[^\w\-. /]")
_STATES = {"finished": "FINISHED", "failed": "FAILED"}
_PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}
"""The library would wait for minutes; this process tries again by itself."""

Point = tuple[str, int, int]
"""Key, step and milliseconds of a metric."""


class MLflow:
    """Runs of one experiment of a tracking server or a local store."""

    def __init__(self, uri: str | None, experiment: str, count: Count) -> None:
        """Load the library.

        Raises:
            ImportError: neither mlflow nor mlflow-skinny is installed.
        """
        for name, value in _PATIENCE.items():
            os.environ.setdefault(name, value)
        entities = importlib.import_module("mlflow.entities")
        self._metric: Any = entities.Metric
        self._parameter: Any = entities.Param
        self._tag: Any = entities.RunTag
        self._client: Any = importlib.import_module("mlflow").MlflowClient(tracking_uri=uri)
        self._experiment = experiment
        self._count = count
        self._run = self._whole = ""
        self._held: set[Point] = set()

    def open(
        self, run: RunFacts, timeline: Timeline, attempt: int, noted: dict[str, int | str]
    ) -> int | None:
        """Find or make the runs, and read back a batch that was interrupted."""
        key = f"{run.key}-{attempt}"
        name = run.id if attempt == 1 else f"{run.id} · delivery {attempt}"
        self._whole = self._found_or_made(run, key, name, {}).info.run_id
        tags = {
            "mlflow.parentRunId": self._whole,
            "mlflow.note.content": timeline.reason or "the first timeline",
            "fttui.timeline": str(timeline.number),
        }
        name = tracker_run_name(run, timeline, attempt)
        found = self._found_or_made(run, f"{key}-{timeline.number}", name, tags)
        self._run = found.info.run_id
        through = int(found.data.tags.get(_THROUGH, 0))
        sending = int(found.data.tags.get(_SENDING, 0))
        self._held = set(self._points_of(found)) if sending > through else set()
        return through

    def _found_or_made(self, run: RunFacts, key: str, name: str, tags: dict[str, str]) -> Any:
        """Return the tracker run with a key; it gets the parameters that it lacks."""
        experiment = self._experiment_id()
        found = self._client.search_runs([experiment], f"tags.`{_KEY}` = '{key}'", max_results=1)
        if found:
            one = found[0]
        else:
            tags = {_KEY: key, "fttui.run": run.id, **tags}
            start = int(run.created * 1000)
            one = self._client.create_run(experiment, start_time=start, tags=tags, run_name=name)
        self._add_parameters(one, run.config)
        return one

    def _experiment_id(self) -> str:
        found = self._client.get_experiment_by_name(self._experiment)
        if found is None:
            return str(self._client.create_experiment(self._experiment))
        if found.lifecycle_stage != "active":
            raise TrackerDown(
                f"the experiment {self._experiment} is deleted; restore it, or name another one "
                "with tracking.project"
            )
        return str(found.experiment_id)

    def _add_parameters(self, one: Any, config: dict[str, object]) -> None:
        missing = [
            (_named(key), str(value))
            for key, value in flat(config)
            if _named(key) not in one.data.params
        ]
        parameters = [self._parameter(key, self._cut(value)) for key, value in missing]
        for start in range(0, len(parameters), _OTHERS_AT_ONCE):
            part = parameters[start : start + _OTHERS_AT_ONCE]
            self._client.log_batch(one.info.run_id, params=part)

    def _cut(self, value: str) -> str:
        if len(value) > _PARAMETER_CHARACTERS:
            self._count(f"parameters cut to {_PARAMETER_CHARACTERS} characters", 1)
        return value[:_PARAMETER_CHARACTERS]

    def _points_of(self, found: Any) -> Iterator[Point]:
        for key in found.data.metrics:
            for one in self._client.get_metric_history(found.info.run_id, key):
                yield key, one.step, one.timestamp

    def write(self, deliveries: Sequence[Delivery]) -> dict[str, int | str]:
        """Send points and tags, between the two tags that say how far it is."""
        last = deliveries[-1].seq
        self._client.set_tag(self._run, _SENDING, str(last))
        points = [point for item in deliveries for point in self._points(item)]
        for start in range(0, len(points), _METRICS_AT_ONCE):
            self._client.log_batch(self._run, metrics=points[start : start + _METRICS_AT_ONCE])
        tags = [tag for item in deliveries for tag in self._tags(item)]
        for start in range(0, len(tags), _OTHERS_AT_ONCE):
            self._client.log_batch(self._run, tags=tags[start : start + _OTHERS_AT_ONCE])
        self._client.set_tag(self._run, _THROUGH, str(last))
        self._held = set()
        return {"run": self._run}

    def _points(self, item: Delivery) -> Iterator[Any]:
        if not isinstance(item, Points):
            return
        milliseconds = int(item.time * 1000)
        for name, value in item.metrics.items():
            key = _named(name)
            if (key, item.step, milliseconds) not in self._held:
                yield self._metric(key, value, milliseconds, item.step)

    def _tags(self, item: Delivery) -> Iterator[Any]:
        match item:
            case Note():
                text = f"step {item.step}: {item.text}"
                yield self._tag(f"{item.kind}.{item.seq:07}", self._shortened(text))
            case Sample():
                text = f"step {item.step}: {item.prompt}\n→ {item.text}"
                yield self._tag(f"sample.{item.seq:07}", self._shortened(text))

    def _shortened(self, text: str) -> str:
        if len(text) > _TAG_CHARACTERS:
            self._count(f"notes and samples cut to {_TAG_CHARACTERS} characters", 1)
        return text[:_TAG_CHARACTERS]

    def close(self, outcome: str) -> None:
        """Set the state of the tracker run; the whole one follows its last timeline."""
        run, self._run = self._run, ""
        if run and outcome:
            for one in (run, self._whole):
                self._client.set_terminated(one, _STATES[outcome])


def _named(key: str) -> str:
    """Return a name without the characters that MLflow refuses in names."""
    return _UNUSABLE.sub("_", key)
