"""Course of a search for culprits: which step is trained next, and with which of its samples.

First the step of the anomaly is repeated with parts of its samples replaced. If its own samples are
not the cause, an update before it may be: then the samples of each earlier step are replaced in
turn, the steps after it are trained as in the run, and the figures of the anomaly's step tell.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .culprits import Figures, SearchResult, Verdict, most_tests, search, usual_again
from .replay_plan import PlannedStep, ReplayPlan

SAME = 1e-3
"""Relative difference from the run up to which a repeated step counts as the same. Without
`train.deterministic`, kernels of a GPU may add in another order each time."""


class Course:
    """A search in progress, as far as it needs no training state."""

    def __init__(self, plan: ReplayPlan) -> None:
        """Begin at the first step of a plan; the anomaly's own samples are searched first."""
        self.plan = plan
        self.number = 0
        """Index of the step that is trained next or now."""
        self.target = len(plan.steps) - 1
        """Index of the step whose samples are searched."""
        self.samples: list[str] = []
        """The ids of the samples of that step on all ranks."""
        self.most = 1
        """Largest number of steps that are trained until the samples of this step are searched."""
        self.searched_earlier = 0
        """Steps before that of the anomaly whose samples were searched or are searched now."""
        self.tests = 0
        self.steps = 0
        """Steps before that of the anomaly that were trained, on the way and in tests."""
        self.difference = 0.0
        """Largest relative difference of a repeated step from the run."""
        self.result: SearchResult | None = None
        self.reason = ""
        self._own: SearchResult | None = None
        self._search = search((), plan.noise)
        self._present: tuple[str, ...] = ()

    @property
    def step(self) -> PlannedStep:
        """The step that is trained next or now."""
        return self.plan.steps[self.number]

    @property
    def cause(self) -> PlannedStep:
        """The step whose samples are searched."""
        return self.plan.steps[self.target]

    @property
    def trained(self) -> int:
        """Steps trained so far."""
        return self.steps + self.tests

    @property
    def at_anomaly(self) -> bool:
        """Whether the step is that of the anomaly, whose figures end a test; it is not applied."""
        return self.number == len(self.plan.steps) - 1

    @property
    def early(self) -> bool:
        """Whether the samples of a step before that of the anomaly are searched."""
        return self._own is not None

    @property
    def _whole(self) -> Figures | None:
        """Figures of the anomaly's step as it was, when an earlier step is searched."""
        return None if self._own is None else self._own.whole

    @property
    def first(self) -> int:
        """Index of the step from which a test trains; the state before it is restored for each."""
        return len(self.plan.steps) - 1 - self.plan.earlier if self.early else self.target

    @property
    def left_out(self) -> set[str]:
        """The samples that are left out of the step.

        They are those in quarantine at the time and, in the step whose samples are searched, those
        that are not present in the test.
        """
        out = set(self.step.quarantine)
        searched = self.number == self.target and self.samples
        return out | {*self.samples} - {*self._present} if searched else out

    @property
    def may_update(self) -> bool:
        """Whether the optimizer may change the weights in the step."""
        return self.result is None and not self.at_anomaly and not self.step.skipped

    def examine(self, samples: Sequence[str]) -> None:
        """Begin the search among the samples of the step `cause`, from all ranks."""
        self.samples = list(dict.fromkeys(samples))
        self._search = search(self.samples, self.plan.noise)
        self._present = next(self._search)
        way = max(self.first - self.number, 0)
        each = len(self.plan.steps) - self.first
        self.most = self.trained + way + each * most_tests(len(self.samples))
        if (whole := self._whole) is not None:
            self.searched_earlier += 1
            self._pass(whole)  # it is known

    def judge(self, got: Figures) -> None:
        """Compare the figures of the step with the run, or pass them to the search."""
        as_in_run = self.number < self.target or not (self.early or self.tests)
        if as_in_run:
            self._compare(got)
        if self.at_anomaly and self.result is None:
            self.tests += 1
            self._pass(got)

    def _pass(self, figures: Figures) -> None:
        """Pass the figures of a test to the search, which gives the next test or its result."""
        if not self._present and self._still_raised(figures):
            self.result = SearchResult("spread", self._whole, figures)
            return
        try:
            self._present = self._search.send(figures)
        except StopIteration as end:
            self.result = end.value

    def _still_raised(self, replaced: Figures) -> bool:
        """Return whether the anomaly is there although an earlier step had other samples.

        Other samples change what follows anyway; the cause is that without which all is usual.
        """
        whole, usual = self._whole, self.plan.usual
        if whole is None or usual is None:
            return False
        return not usual_again(whole, replaced, usual, self.plan.noise)

    def _compare(self, got: Figures) -> None:
        """End the search if a repeated step differs from the run by more than the share `SAME`."""
        step = self.step
        pairs = ((got.loss, step.loss), (got.grad_norm, step.grad_norm))
        difference = max(relative_difference(*pair) for pair in pairs)
        self.difference = max(self.difference, difference)
        if difference > SAME:
            self.stop(
                "not repeated",
                f"step {step.step} came to loss {got.loss:.6g} and gradient norm "
                f"{got.grad_norm:.6g}, in the run to {step.loss:.6g} and {step.grad_norm:.6g}",
            )

    def passed(self) -> None:
        """Go on to the next step."""
        self.number += 1
        self.steps += 1

    def again(self) -> None:
        """Go back to the step from which a test trains."""
        self.number = self.first

    def stop(self, verdict: Verdict, reason: str) -> None:
        """End the search early."""
        self.result, self.reason = SearchResult(verdict), reason

    def give_up(self, reason: str) -> None:
        """End with the result about the anomaly's own step, because no earlier one is searched."""
        self.result, self.reason = self._own, reason
        self.target = len(self.plan.steps) - 1

    def go_earlier(self) -> bool:
        """Turn to the samples of the step before; False if the search has ended.

        It goes on if the samples searched so far are not the cause, an earlier step of the plan is
        left, and the optimizer applied its update. `examine` is due then. The first time the plan
        is that of the earlier steps, from its first step on.
        """
        if self.result is None or self.result.verdict != "spread":
            return False
        if self._own is None:
            if self.plan.wider is None or self.result.whole is None:
                return False
            self._own = self.result
            self.plan, self.number = self.plan.wider, 0
            self.target = len(self.plan.steps) - 1
        while self.target > self.first:
            self.target -= 1
            if not self.cause.skipped:
                self.result = None
                return True
        self.give_up("")
        return False


def relative_difference(got: float, expected: float) -> float:
    """Return the relative difference of two figures.

    It is 0 if both are not finite, and infinite if one of them is not.
    """
    if not math.isfinite(got) or not math.isfinite(expected):
        return 0.0 if math.isfinite(got) == math.isfinite(expected) else math.inf
    return abs(got - expected) / max(abs(expected), 1e-12)
