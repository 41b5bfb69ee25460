"""Run a sweep: trial after trial on each device, until there are enough, or the time is over."""

from __future__ import annotations

import threading
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
_POLL_S = 0.1
_FEW_REPEATS = 10
"""Proposals in a row that repeat another trial after which the first combination that was not tried
is taken, if the space has a limited number of them."""
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
    finished: Callable[[TrialResult, int], None]
    """Called after each trial, with the number of trials that train now."""
    broke: Callable[[OpenTrial | None, Exception, Sequence[int]], None]
    """Called at once when an error ends the sweep, with the trial in which it occurred, None if in
    none, and the numbers of the trials that train now."""


class TrialLoop:
    """Trains the trials of a sweep that are left, as many at a time as there are starters."""

    def __init__(
        self,
        plan: SweepPlan,
        space: Sequence[Axis],
        study: Study,
        starters: Sequence[TrialStarter],
        root: Path,
        telling: SweepTelling,
    ) -> None:
        self._plan = plan
        self._space = space
        self._study = study
        self._starters = starters
        self._root = root
        self._tell = telling
        self.current: dict[int, RunDirectory | None] = {}
        """The trials that train now, by their numbers; None before the run is started."""
        self._broken = False
        """Whether an error has occurred that ends the sweep."""
        self._threads: list[threading.Thread] = []
        self._turn = threading.RLock()
        """Held while one of the threads uses the study or reports something."""
        self._leaving = threading.Event()
        """Set once no other trial may begin, because of an interruption or an error."""

    def run(self, deadline: float | None = None) -> str:
        """Train trials; return why there are no more, or an empty text after the last one.

        Args:
            deadline: monotonic seconds at which the trial in progress is interrupted; None for no
                limit.

        Raises:
            FttuiError: the study cannot be written.
        """
        before = self._ended()
        if len(self._starters) == 1:
            return self._train(self._starters[0], before, deadline)
        return self._side_by_side(before, deadline)

    def _side_by_side(self, before: Sequence[int], deadline: float | None) -> str:
        """Train trials with each starter on a thread of its own; return why there are no more."""
        whys: list[str] = []
        errors: list[Exception] = []

        def work(starter: TrialStarter) -> None:
            try:
                whys.append(self._train(starter, before, deadline))
            except Exception as error:  # noqa: BLE001  # raised below, on the thread of the caller
                errors.append(error)

        self._threads = [
            threading.Thread(target=work, args=[one], name=f"trials {n}", daemon=True)
            for n, one in enumerate(self._starters, 1)
        ]
        try:
            for thread in self._threads:
                thread.start()
            for thread in self._threads:
                thread.join()
        except KeyboardInterrupt:
            self._leaving.set()
            raise
        if errors:
            raise errors[0]
        return next(filter(None, whys), "")

    def interrupted(self) -> list[RunDirectory]:
        """Return the runs that train after an interruption, once those that start have started."""
        while any(thread.is_alive() for thread in self._threads):
            if None not in list(self.current.values()):
                break
            time.sleep(_POLL_S)
        return [run for run in list(self.current.values()) if run is not None]

    def _train(self, starter: TrialStarter, before: Sequence[int], deadline: float | None) -> str:
        """Train trials with one starter; return why there are no more, or an empty text."""
        trial: OpenTrial | str | None = None
        try:
            while True:
                trial = None
                with self._turn:
                    trial = self._next(before, deadline)
                    if isinstance(trial, str):
                        return trial
                    self.current[trial.number] = None
                result = self._trial(starter, trial, deadline)
                with self._turn:
                    del self.current[trial.number]
                    if self._leaving.is_set():  # it may have been stopped, and is taken up later
                        return ""
                    if result is None:
                        return f"the time limit is reached in trial {trial.number}"
                    self._study.conclude(trial, result)
                    self._tell.finished(result, len(self.current))
        except Exception as error:
            self._break(None if isinstance(trial, str) else trial, error)
            raise

    def _break(self, trial: OpenTrial | None, error: Exception) -> None:
        """Let no further trial begin after an error; those that train are concluded as usual."""
        with self._turn:
            self._broken = True
            if trial is not None:
                self.current.pop(trial.number, None)
            self._tell.broke(trial, error, sorted(self.current))

    def _next(self, before: Sequence[int], deadline: float | None) -> OpenTrial | str:
        """Return the next trial to train; or why there is none, which is empty after the last."""
        for attempt in range(_MOST_REPEATS):
            if (left := self._left()) <= 0 or self._leaving.is_set() or self._broken:
                return ""
            if deadline is not None and time.monotonic() >= deadline:
                return f"the time limit is reached, with {left} trials left"
            if self._only_failures(before):
                return (
                    f"the first {MOST_FAILURES} trials failed, so the next would probably fail too"
                )
            trial = self._study.next_trial(self.current, untried=attempt >= _FEW_REPEATS)
            known = repeated(self._study.results(), trial.values, self.current)
            if known is None:
                return trial
            again = replace(known, number=trial.number, same_as=known.number)
            self._study.conclude(trial, again)
        return "the sampler proposes only settings that were tried"

    def _left(self) -> int:
        """Return the number of trials that are left to begin."""
        ended = [r for r in self._study.results() if r.state != "open" and not r.same_as]
        most = points(self._space)
        wanted = self._plan.trials if most is None else min(most, self._plan.trials)
        return wanted - len(ended) - len(self.current)

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

    def _trial(
        self, starter: TrialStarter, trial: OpenTrial, deadline: float | None
    ) -> TrialResult | None:
        """Train a trial; return None if the time limit has interrupted it."""
        try:
            run = self._begin(starter, trial)
        except FttuiError as error:
            text = str(error).splitlines()[0]
            kind = "memory" if isinstance(error, ModelError) else "settings"
            return TrialResult(trial.number, trial.values, "failed", why=text, failure=kind)
        self.current[trial.number] = run
        record = TrialRecord(self._plan.by, self._plan.every)
        overtime = False

        def told(found: TrialRecord, measured: bool) -> str:
            nonlocal overtime
            if not self._leaving.is_set():  # afterwards other lines are printed
                with self._turn:
                    self._tell.progress(trial, found)
            if deadline is not None and time.monotonic() >= deadline and not trial.ending:
                overtime = True
                return "the time limit of the sweep is reached"
            with self._turn:
                return self._why_early(trial, found) if measured else ""

        followed = follow(run, record, told)
        if overtime and not (record.ended and record.ended.state is RunState.FINISHED):
            return None
        return result_of(self._plan, trial, run.id, followed)

    def _begin(self, starter: TrialStarter, trial: OpenTrial) -> RunDirectory:
        if trial.run:
            run = RunDirectory(self._root / trial.run)
            if trial.ending or (run.identity_file.exists() and starter.take_up(run)):
                return run
        run = starter.start(self._overrides(trial))
        with self._turn:
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
