"""SwanLab: an experiment per timeline, in the group of the run.

SwanLab keeps one value per metric and step, so a value that is sent again online changes nothing.
Offline it cannot continue an experiment: each start of this process writes a new local folder, and
what was passed on but not noted when the process was killed is in two of them.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from typing import Any

from ..deliveries import Delivery, Note, Points, RunFacts, Sample, Timeline
from ..sink import Count
from .tracker_run import tracker_run_name


class SwanLab:
    """Experiments of one project; `SWANLAB_MODE` and the login are those of the user."""

    def __init__(self, project: str, workspace: str | None, count: Count) -> None:
        """Load the library.

        Raises:
            ImportError: swanlab is not installed.
        """
        self._library: Any = importlib.import_module("swanlab")
        self._project, self._workspace = project, workspace
        self._count = count
        self._run: Any = None

    def open(
        self, run: RunFacts, timeline: Timeline, attempt: int, noted: dict[str, int | str]
    ) -> int | None:
        """Begin an experiment, or continue it online."""
        settings = self._library.Settings(interactive=False)
        self._run = self._library.init(
            project=self._project,
            workspace=self._workspace,
            name=tracker_run_name(run, timeline, attempt),
            group=run.id,
            description=timeline.reason or None,
            id=f"{run.key}{attempt:02}{timeline.number:03}",
            resume="allow",
            config=None if noted else run.config,
            settings=settings,
        )
        return None

    def write(self, deliveries: Sequence[Delivery]) -> dict[str, int | str]:
        """Pass the records on."""
        for item in deliveries:
            if values := self._values(item):
                self._run.log(values, step=item.step)
        return {"run": str(self._run.id)}

    def _values(self, item: Delivery) -> dict[str, Any]:
        match item:
            case Points(metrics=metrics):
                finite = {name: v for name, v in metrics.items() if math.isfinite(v)}
                if lost := len(metrics) - len(finite):
                    self._count("values that are NaN or infinite, which SwanLab cannot draw", lost)
                return finite
            case Note():
                return {f"notes/{item.kind}": self._library.Text(item.text)}
            case Sample():
                text = self._library.Text(item.text, caption=item.prompt)
                return {"samples": text}

    def close(self, outcome: str) -> None:
        """Finish the experiment."""
        run, self._run = self._run, None
        if run is not None:
            failed = outcome == "failed"
            run.finish("crashed" if failed else "success", "the run failed" if failed else None)
