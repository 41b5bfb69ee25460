"""The study of a sweep in Optuna: which settings to try next, and when a trial ends early."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from fttui.engine.errors import FttuiError
from fttui.engine.protocol.thresholds import lower_is_better

from ...view_model.race.race_state import EVAL
from ...view_model.sweep.search_space import MOST_POINTS, Axis, points
from ...view_model.sweep.sweep_plan import SweepPlan, TrialResult
from .sweep_folder import SweepFolder

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial, Trial

_FEWEST_TO_COMPARE = 4
"""Trials that train all steps before the pruner of medians ends one, and before the sampler tpe
uses what it has seen."""
_RESULT = "result"
"""Attribute of a trial that holds its result, beside what Optuna stores."""
_RUN = "run"
_ENDING = "ending"


class OpenTrial:
    """A trial that is not concluded."""

    def __init__(self, trial: Trial, values: dict[str, str], known: FrozenTrial | None) -> None:
        self._trial = trial
        attributes = known.user_attrs if known else {}
        self._reported = set(known.intermediate_values) if known else set()
        self.number = trial.number + 1
        self.values = values
        """The settings, key to value."""
        self.run: str = attributes.get(_RUN, "")
        """Id of the run that an earlier process has started for it; empty without one."""
        self.ending: str = attributes.get(_ENDING, "")
        """Why an earlier process has decided to end it early; empty if it has not."""

    def began(self, run: str) -> None:
        """Store the id of its run."""
        self.run = run
        self._trial.set_user_attr(_RUN, run)

    def ends_early(self, why: str) -> None:
        """Store that it ends early, before its run is stopped."""
        self.ending = why
        self._trial.set_user_attr(_ENDING, why)

    def report(self, step: int, value: float) -> bool:
        """Store a value of the metric; return whether the trial should end early."""
        if step not in self._reported:
            self._reported.add(step)
            self._trial.report(value, step)
        return bool(self._trial.should_prune())

    def conclude(self, found: dict[str, Any]) -> None:
        """Store the result beside what Optuna stores."""
        self._trial.set_user_attr(_RESULT, found)


class Study:
    """The trials of a sweep, stored in its folder, so that another process can resume the sweep.

    Raises:
        FttuiError: the file of the study is damaged.
    """

    def __init__(self, folder: SweepFolder, plan: SweepPlan, space: Sequence[Axis]) -> None:
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._plan = plan
        self._space = space
        lower = lower_is_better(plan.by.removeprefix(EVAL))
        try:
            self._study = optuna.create_study(
                study_name=folder.id,
                storage=JournalStorage(JournalFileBackend(str(folder.study))),
                direction="minimize" if lower else "maximize",
                load_if_exists=True,
                pruner=_pruner(plan),
            )
        except (ValueError, KeyError) as error:
            raise FttuiError(
                f"{folder.study} is damaged ({error}); the runs of its trials are untouched: begin "
                "another sweep"
            ) from None
        # Each process needs another seed, or a resumed sweep would draw the first values again.
        self._study.sampler = _sampler(plan, plan.seed + len(self._study.trials))
        self._distributions = {axis.key: _distribution(axis) for axis in space}

    def next_trial(self, training: Collection[int] = (), *, untried: bool = False) -> OpenTrial:
        """Return a trial that was interrupted, or else a new one.

        Args:
            training: the numbers of the trials that train now.
            untried: whether a new one has the first combination that was not tried instead of what
                the sampler proposes, if the space has a limited number of them.
        """
        import optuna

        for known in self._study.get_trials(deepcopy=False):
            interrupted = known.state is optuna.trial.TrialState.RUNNING
            if interrupted and known.number + 1 not in training:
                trial = optuna.trial.Trial(self._study, known._trial_id)
                return OpenTrial(trial, self._values(known.params), known)
        most = points(self._space)
        limited = most is not None and most <= MOST_POINTS
        if self._plan.sampler == "grid" or (untried and limited):
            self._enqueue_next_of_grid()
        trial = self._study.ask(self._distributions)
        return OpenTrial(trial, self._values(trial.params), None)

    def _enqueue_next_of_grid(self) -> None:
        """Let the next trial have the first combination that none has had.

        The sampler of Optuna for grids counts on Optuna's own loop, which ends the study by itself.
        """
        known = self._study.get_trials(deepcopy=False)
        tried = {tuple(self._values(one.params).items()) for one in known}
        for texts in product(*(axis.values or () for axis in self._space)):
            values = {axis.key: text for axis, text in zip(self._space, texts, strict=True)}
            if tuple(values.items()) not in tried:
                drawn = (_typed(axis, values[axis.key]) for axis in self._space)
                self._study.enqueue_trial(dict(zip(values, drawn, strict=True)))
                return

    def conclude(self, trial: OpenTrial, result: TrialResult) -> None:
        """Store how a trial has ended."""
        from msgspec import to_builtins
        from optuna.trial import TrialState

        found = to_builtins(result)
        del found["losses"]
        trial.conclude(found)
        number = trial.number - 1
        if result.state == "complete" and result.score is not None:
            self._study.tell(number, result.score)
        elif result.state == "pruned":
            self._study.tell(number, state=TrialState.PRUNED)
        else:
            self._study.tell(number, state=TrialState.FAIL)

    def results(self) -> list[TrialResult]:
        """Return all trials so far, in their order."""
        return [self._result(known) for known in self._study.get_trials(deepcopy=False)]

    def _result(self, known: FrozenTrial) -> TrialResult:
        if (found := known.user_attrs.get(_RESULT)) is not None and known.state.is_finished():
            return TrialResult(**found)
        values, run = self._values(known.params), known.user_attrs.get(_RUN, "")
        return TrialResult(known.number + 1, values, "open", run)

    def _values(self, found: dict[str, Any]) -> dict[str, str]:
        return {axis.key: axis.text(found[axis.key]) for axis in self._space if axis.key in found}


def _distribution(axis: Axis) -> BaseDistribution:
    from optuna.distributions import (
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    if axis.choices:
        return CategoricalDistribution(axis.choices)
    if axis.whole:
        step = round(axis.step or 1)
        return IntDistribution(round(axis.low), round(axis.high), log=axis.log, step=step)
    return FloatDistribution(axis.low, axis.high, log=axis.log, step=axis.step)


def _sampler(plan: SweepPlan, seed: int) -> BaseSampler:
    from optuna.samplers import RandomSampler, TPESampler

    if plan.sampler in ("random", "grid"):
        return RandomSampler(seed=seed)
    first = min(10, max(_FEWEST_TO_COMPARE, plan.trials // 4))
    # Without the lie, trials that train side by side would have nearly the same settings.
    return TPESampler(seed=seed, n_startup_trials=first, constant_liar=True)


def _typed(axis: Axis, text: str) -> str | int | float:
    if axis.choices:
        return text
    return int(text) if axis.whole else float(text)


def _pruner(plan: SweepPlan) -> BasePruner:
    from optuna.pruners import HyperbandPruner, MedianPruner, NopPruner, SuccessiveHalvingPruner

    if plan.pruner == "median":
        return MedianPruner(n_startup_trials=_FEWEST_TO_COMPARE)
    if plan.pruner == "halving":
        return SuccessiveHalvingPruner(min_resource=plan.every, reduction_factor=2)
    if plan.pruner == "hyperband":
        return HyperbandPruner(min_resource=plan.every, max_resource=plan.steps, reduction_factor=2)
    return NopPruner()
