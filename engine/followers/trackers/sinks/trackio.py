"""trackio: its local store, in which every record has an id that is kept once.

The ids are made of the run and the sequence number, so that a record that is delivered again
changes nothing. `trackio sync` copies a local project to a Space.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from ..deliveries import Delivery, Note, Points, RunFacts, Sample, Timeline
from .tracker_run import tracker_run_name


class Trackio:
    """Runs of one project in the local store of trackio."""

    def __init__(self, project: str) -> None:
        """Load the library.

        Raises:
            ImportError: trackio is not installed.
            ValueError: it does not accept the name of the project.
        """
        self._store: Any = importlib.import_module("trackio.sqlite_storage").SQLiteStorage
        self._project = project
        self._store.validate_project_name(project)
        self._name = self._id = ""

    def open(
        self, run: RunFacts, timeline: Timeline, attempt: int, noted: dict[str, int | str]
    ) -> int | None:
        """Begin or continue a run; a new one gets the configuration with its first record."""
        self._name = tracker_run_name(run, timeline, attempt)
        self._id = f"{run.key}-{attempt}-{timeline.number}"
        if noted:
            return None
        config = {**run.config, "_Group": run.id, "_Created": _when(run.created)}
        begun = {"timeline": timeline.number, "timeline_reason": timeline.reason or "first"}
        self._log([begun], [timeline.start_step], [run.created], ["begun"], config)
        return None

    def write(self, deliveries: Sequence[Delivery]) -> dict[str, int | str]:
        """Add metrics, samples and notes; those that the store has already are ignored."""
        rows = [(item, row) for item in deliveries if (row := _row(item)) is not None]
        if rows:
            items = [item for item, _ in rows]
            steps, times = [item.step for item in items], [item.time for item in items]
            ids = [str(item.seq) for item in items]
            self._log([row for _, row in rows], steps, times, ids, None)
        self._add_notes([item for item in deliveries if isinstance(item, Note)])
        return {"run": self._id}

    def _log(
        self,
        rows: list[dict[str, Any]],
        steps: list[int],
        times: list[float],
        ids: list[str],
        config: dict[str, Any] | None,
    ) -> None:
        self._store.bulk_log(
            project=self._project,
            run=self._name,
            run_id=self._id,
            metrics_list=rows,
            steps=steps,
            timestamps=[_when(time) for time in times],
            log_ids=[f"{self._id}-{one}" for one in ids],
            config=config,
        )

    def _add_notes(self, notes: list[Note]) -> None:
        self._store.bulk_alert(
            project=self._project,
            run=self._name,
            run_id=self._id,
            titles=[note.kind for note in notes],
            texts=[note.text for note in notes],
            levels=["error" if note.alarm else "info" for note in notes],
            steps=[note.step for note in notes],
            timestamps=[_when(note.time) for note in notes],
            alert_ids=[f"{self._id}-{note.seq}" for note in notes],
        )

    def close(self, outcome: str) -> None:
        """Do nothing: the store has no open runs."""


def _row(item: Delivery) -> dict[str, Any] | None:
    match item:
        case Points(metrics=metrics):
            return {**metrics, "global_step": item.step}
        case Sample():
            return {"samples": f"{item.prompt}\n→ {item.text}", "global_step": item.step}
    return None


def _when(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).isoformat()
