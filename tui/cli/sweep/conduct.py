"""Run a sweep: one trial after another, until there are enough, or the time is over."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from fttui.engine.errors import FttuiError, ModelError
from fttui.engine.protocol.states import RunState
from fttui.engine.run.run_dir import RunDirectory

from ...view_model.sweep.search_space import Axis, points
from ...view_model.sweep.sweep_plan import SweepPlan, TrialResult, repeated
from ...view_model.sweep.trial_record import TrialRecord
from .study import OpenTrial, Study
from .trial_run import Followed, follow, kind_of_failure

MOST_FAILURES = 5
"""Failed trials without a successful one after which a sweep ends: the next would fail, too."""
_EARLY_STOP = "early stop"
"""Issuer of the stop that `train.early_stop` calls for; such a trial has trained enough."""
_MOST_REPEATS = 50
"""Proposals in a row that repeat an earlier trial after which nothing new is expected."""


class TrialStarter(Protocol):
    """Starts the runs of trials."""

    def start(self, overrides: list[str]) -> RunDirectory:
        """Start the run of a trial.

        Raises:
            FttuiError: it cannot be started with these settings.
        """

    def take_up(self, run: RunDirectory) -> bool:
        """Resume the run of an interrupted trial; return False if it must start again."""


@dataclass(frozen=True)
class SweepTelling:
    """Functions that are called during a sweep."""

    progress: Callable[[OpenTrial, TrialRecord], None]
    """Called repeatedly while a trial trains."""
    finished: Callable[[TrialResult], None]
    """Called after each trial."""


class TrialLoop:
    """Trains the trials of a sweep that are left."""

    def __init__(
        self,
        plan: SweepPlan,
        space: Sequence[Axis],
        study: Study,
        runs: TrialStarter,
        root: Path,
        telling: SweepTelling,
    ) -> None:
        self._plan = plan
        self._space = space
        self._study = study
        self._runs = runs
        self._root = root
        self._tell = telling
        self.current: RunDirectory | None = None
        """The run of the trial that trains now."""

    def run(self, deadline: float | None = None) -> str:
        """Train trials; return why there are no more, or an empty text after the last one.

        Args:
            deadline: monotonic seconds at which the trial in progress is interrupted; None for no
                limit.

        Raises:
            FttuiError: the study cannot be written.
        """
        repeats, before = 0, self._ended()
        while (left := self._left()) > 0:
            if deadline is not None and time.monotonic() >= deadline:
                return f"the time limit is reached, with {left} trials left"
            if self._only_failures(before):
                return (
                    f"the first {MOST_FAILURES} trials failed, so the next would probably fail too"
                )
            trial = self._study.next_trial()
            known = repeated(self._study.results(), trial.values)
            if known is not None:
                repeats += 1
                again = replace(known, number=trial.number, same_as=known.number)
                self._study.conclude(trial, again)
                if repeats >= _MOST_REPEATS:
                    return "the sampler proposes only settings that were tried"
                continue
            repeats = 0
            result = self._trial(trial, deadline)
            if result is None:
                return f"the time limit is reached in trial {trial.number}"
            self._study.conclude(trial, result)
            self._tell.finished(result)
        return ""

    def _left(self) -> int:
        """Return the number of trials that are left."""
        ended = [r for r in self._study.results() if r.state != "open" and not r.same_as]
        most = points(self._space)
        wanted = self._plan.trials if most is None else min(most, self._plan.trials)
        return wanted - len(ended)

    def _ended(self) -> list[int]:
        """Return the numbers of the trials that have ended."""
        return [one.number for one in self._study.results() if one.state != "open"]

    def _only_failures(self, before: Sequence[int]) -> bool:
        """Whether no trial has succeeded, and enough have failed since this process began.

        The cause of failures in an earlier process may have been corrected since.
        """
        ended = [one for one in self._study.results() if one.state != "open"]
        since = [one for one in ended if one.number not in before]
        return len(since) >= MOST_FAILURES and all(one.state == "failed" for one in ended)

    def _trial(self, trial: OpenTrial, deadline: float | None) -> TrialResult | None:
        """Train a trial; return None if the time limit has interrupted it."""
        try:
            run = self._begin(trial)
        except FttuiError as error:
            text = str(error).splitlines()[0]
            kind = "memory" if isinstance(error, ModelError) else "settings"
            return TrialResult(trial.number, trial.values, "failed", why=text, failure=kind)
        self.current = run
        record = TrialRecord(self._plan.by, self._plan.every)
        overtime = False

        def told(found: TrialRecord, measured: bool) -> str:
            nonlocal overtime
            self._tell.progress(trial, found)
            if deadline is not None and time.monotonic() >= deadline and not trial.ending:
                overtime = True
                return "the time limit of the sweep is reached"
            return self._why_early(trial, found) if measured else ""

        followed = follow(run, record, told)
        self.current = None
        if overtime and not (record.ended and record.ended.state is RunState.FINISHED):
            return None
        return result_of(self._plan, trial, run.id, followed)

    def _begin(self, trial: OpenTrial) -> RunDirectory:
        if trial.run:
            run = RunDirectory(self._root / trial.run)
            if trial.ending or (run.identity_file.exists() and self._runs.take_up(run)):
                return run
        run = self._runs.start(self._overrides(trial))
        trial.began(run.id)
        return run

    def _overrides(self, trial: OpenTrial) -> list[str]:
        plan = self._plan
        return [
            f"name={plan.name}-t{trial.number}",
            f"train.steps={plan.steps}",
            *as_overrides(trial.values),
        ]

    def _why_early(self, trial: OpenTrial, record: TrialRecord) -> str:
        """Report a new value of the metric; return why the trial ends now, or an empty text."""
        value = record.values[record.step]
        worse = trial.report(record.step, value)
        if not worse or trial.ending or record.step >= self._plan.steps:
            return ""
        trial.ends_early(
            f"{self._plan.by} {value:.4g} after step {record.step}, worse than others "
            f"(pruner {self._plan.pruner})"
        )
        return trial.ending


def as_overrides(values: Mapping[str, str]) -> list[str]:
    """Return the settings of a trial as overrides of a configuration."""
    return [f"{key}={value}" for key, value in values.items()]


def result_of(plan: SweepPlan, trial: OpenTrial, run: str, followed: Followed) -> TrialResult:
    """Return the result of a trial whose run has ended."""
    record = followed.record
    found = TrialResult(
        trial.number,
        trial.values,
        "complete",
        run,
        record.score,
        record.step,
        record.seconds,
    )
    if trial.ending:
        newest = record.values[max(record.values)] if record.values else None
        return replace(found, state="pruned", why=trial.ending, score=newest)
    why, kind = _failure(plan, followed)
    return replace(found, state="failed", why=why, failure=kind) if kind else found


def _failure(plan: SweepPlan, followed: Followed) -> tuple[str, str]:
    """Return why a trial has failed, and the kind of failure; two empty texts if it has not."""
    record = followed.record
    if record.halted:
        return record.halted, "not finite"
    if followed.lost or record.ended is None:
        return "the engine ended without a last record; see the engine.log of its run", "error"
    if record.ended.exit_code:
        text = record.ended.error or "its last state could not be saved"
        return text.splitlines()[0], kind_of_failure(text)
    if record.stopped_by not in ("", _EARLY_STOP):
        return f"stopped by {record.stopped_by} after step {record.step}", "stopped"
    missing = record.score is None
    return (f"no finite {plan.by} after its last step", "no value") if missing else ("", "")
