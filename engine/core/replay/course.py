"""Course of a search for culprits: which step is trained next, and with which of its samples.

First the step of the anomaly is repeated with parts of its samples replaced. If its own samples are
not the cause, an update before it may be: then the samples of each earlier step are replaced in
turn, the steps after it are trained as in the run, and the figures of the anomaly's step show
whether the anomaly is gone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .culprits import Figures, SearchResult, Verdict, most_tests, search, usual_again
from .replay_plan import PlannedStep, ReplayPlan

SAME = 1e-3
"""Relative difference from the run up to which a repeated step counts as the same.

Without `train.deterministic`, kernels of a GPU may add in another order each time.
"""


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
        """Upper bound of `trained` when the search among the samples of this step ends."""
        self.searched_earlier = 0
        """Steps before that of the anomaly whose samples were searched or are searched now."""
        self.tests = 0
        self.steps = 0
        """How often steps before that of the anomaly were trained, on the way to it or in tests."""
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
        """Number of steps trained so far."""
        return self.steps + self.tests

    @property
    def at_anomaly(self) -> bool:
        """Whether the step is that of the anomaly: its figures end a test, it makes no update."""
        return self.number == len(self.plan.steps) - 1

    @property
    def early(self) -> bool:
        """Whether the samples of a step before that of the anomaly are searched."""
        return self._own is not None

    @property
    def _whole(self) -> Figures | None:
        """Figures of the anomaly's step with all samples; None until an earlier one is searched."""
        return None if self._own is None else self._own.whole

    @property
    def first(self) -> int:
        """Index of the first step that each test trains, after the state before it is restored."""
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
            self._pass(whole)  # the figures of the first test, with all samples, are known

    def judge(self, got: Figures) -> None:
        """Use the figures of the step that was trained.

        A step that is trained as in the run is compared with the run. The figures of the anomaly's
        step are passed to the search.
        """
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
        """Return whether the anomaly is still there after all samples of an earlier step changed.

        Other samples change the later steps in any case. The earlier step counts as the cause only
        if the figures of the anomaly's step are about usual without its samples.
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
                f"step {step.step} was repeated with loss {got.loss:.6g} and gradient norm "
                f"{got.grad_norm:.6g}; in the run it had {step.loss:.6g} and {step.grad_norm:.6g}",
            )

    def passed(self) -> None:
        """Continue with the next step."""
        self.number += 1
        self.steps += 1

    def again(self) -> None:
        """Go back to the first step that a test trains."""
        self.number = self.first

    def stop(self, verdict: Verdict, reason: str) -> None:
        """End the search early."""
        self.result, self.reason = SearchResult(verdict), reason

    def give_up(self, reason: str) -> None:
        """End with the result about the anomaly's own samples: no earlier step is the cause.

        `reason` says why earlier steps were not searched; empty if they were.
        """
        self.result, self.reason = self._own, reason
        self.target = len(self.plan.steps) - 1

    def go_earlier(self) -> bool:
        """Make the next earlier step the `cause`; return False if the search has ended.

        An earlier step is searched if the samples searched so far are not the cause, the plan has
        such a step, and the optimizer applied its update. `examine` must be called next. The first
        call replaces the plan by its `wider` one, which is trained from its first step on.
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

    It is 0 if neither is finite, and infinite if only one of them is.
    """
    if not math.isfinite(got) or not math.isfinite(expected):
        return 0.0 if math.isfinite(got) == math.isfinite(expected) else math.inf
    return abs(got - expected) / max(abs(expected), 1e-12)
