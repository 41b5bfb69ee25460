"""W&B: a run per timeline, in the group of the run.

Each record is logged with its sequence number as W&B's internal step, which therefore always rises,
also across rollbacks; the x-axis is `global_step`. At the next opening W&B says itself how far it
got: online by the step at which the run continues, offline by the newest step in its own files.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..deliveries import Delivery, Note, Points, RunFacts, Sample, Timeline
from .tracker_run import tracker_run_name
from .wandb_files import newest_step

_STEP = "global_step"


class WandB:
    """Runs of one project; `WANDB_MODE` and the login are those of the user."""

    def __init__(self, project: str, entity: str | None) -> None:
        """Load the library.

        Raises:
            ImportError: wandb is not installed.
        """
        self._library: Any = importlib.import_module("wandb")
        self._project, self._entity = project, entity
        self._run: Any = None

    def open(
        self, run: RunFacts, timeline: Timeline, attempt: int, noted: dict[str, int | str]
    ) -> int | None:
        """Begin a run or continue it."""
        ident = f"{run.key}-{attempt}-{timeline.number}"
        settings = self._settings()
        held = newest_step(Path(settings.wandb_dir), ident)
        self._run = self._library.init(
            project=self._project,
            entity=self._entity,
            id=ident,
            name=tracker_run_name(run, timeline, attempt),
            group=run.id,
            notes=timeline.reason or None,
            config=run.config if held is None else None,
            resume="allow",
            settings=settings,
        )
        self._run.define_metric(_STEP)
        self._run.define_metric("*", step_metric=_STEP)
        if self._run.offline:
            return held or 0
        return int(self._run.starting_step) - 1 if self._run.resumed else 0

    def _settings(self) -> Any:
        """Return settings by which W&B sends what it is given and nothing of this process."""
        return self._library.Settings(
            console="off",
            disable_code=True,
            disable_git=True,
            save_code=False,
            silent=True,
            init_timeout=60,
            x_disable_meta=True,
            x_disable_stats=True,
            x_disable_machine_info=True,
        )

    def write(self, deliveries: Sequence[Delivery]) -> dict[str, int | str]:
        """Pass the records to W&B's own process, which writes them to its file and sends them."""
        for item in deliveries:
            values = {**_values(item), _STEP: item.step, "_timestamp": item.time}
            self._run.log(values, step=item.seq, commit=True)
        return {"run": self._run.id}

    def close(self, outcome: str) -> None:
        """Finish the run, which waits until everything is sent."""
        run, self._run = self._run, None
        if run is not None:
            run.finish(exit_code=1 if outcome == "failed" else 0)


def _values(item: Delivery) -> dict[str, float | str]:
    match item:
        case Points(metrics=metrics):
            return dict(metrics)
        case Note():
            return {f"notes/{item.kind}": item.text}
        case Sample():
            return {"samples": f"{item.prompt}\n→ {item.text}"}
