"""The course of a search goes from the anomaly's own step to those before it, and no further."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from fttui.engine.core.replay.course import Course
from fttui.engine.core.replay.culprits import Figures, Noise, most_tests
from fttui.engine.core.replay.replay_plan import PlannedStep, ReplayPlan

LAST, EARLIER = 10, 3
USUAL, RAISED = Figures(1.0, 1.0), Figures(6.0, 8.0)


def planned(step: int, figures: Figures, **changes: Any) -> PlannedStep:
    return msgspec.structs.replace(
        PlannedStep(step, step, *figures, lr=0.1, clip=None, skipped=False, quarantine=()),
        **changes,
    )


def plan_to(guilty: int, earlier: int = EARLIER, skipped: Collection[int] = ()) -> ReplayPlan:
    """A plan from step 9, and a wider one from step 1, of a run whose figures rise after a step."""
    steps = [
        planned(n, RAISED if n > guilty or n == LAST else USUAL, skipped=n in skipped)
        for n in range(1, LAST + 1)
    ]
    plan = ReplayPlan("bad", "late", steps[-2:], Noise(0.1, 0.1), USUAL)
    wider = msgspec.structs.replace(plan, checkpoint="early", steps=steps, earlier=earlier)
    return msgspec.structs.replace(plan, wider=wider if earlier else None)


class Toy:
    """Training whose figures rise from the update by one sample on."""

    def __init__(self, culprit: str, step: int) -> None:
        self.culprit, self.guilty, self.raised = culprit, step, False
        self.trained: list[int] = []

    def samples(self, step: int) -> list[str]:
        return [f"{step}:{n}" for n in range(16)]

    def search(self, plan: ReplayPlan) -> Course:
        """The course of a search when it has ended."""
        course = Course(plan)
        self.raised = 0 < self.guilty < plan.steps[0].step
        course.examine(self.samples(course.cause.step))
        while True:
            while course.result is not None:
                if not course.go_earlier():
                    return course
                if course.number == 0:
                    self.raised = False
                course.examine(self.samples(course.cause.step))
            self.train(course)

    def train(self, course: Course) -> None:
        step = course.step.step
        self.trained.append(step)
        present = step == self.guilty and self.culprit not in course.left_out
        always = self.guilty == 0 and step == LAST
        high = self.raised or always or (present and step == LAST)
        course.judge(RAISED if high else USUAL)
        self.raised = self.raised or (present and course.may_update)
        if course.at_anomaly:
            course.again()
            self.raised = 0 < self.guilty < course.step.step
        elif course.result is None:
            course.passed()


def test_a_culprit_of_the_anomalys_own_step_needs_no_earlier_one() -> None:
    toy = Toy("10:5", LAST)
    course = toy.search(plan_to(LAST))
    assert course.result is not None
    assert [one.id for one in course.result.culprits] == ["10:5"]
    assert (course.cause.step, course.searched_earlier) == (LAST, 0)
    assert toy.trained == [9] + [LAST] * course.tests


def test_a_culprit_of_an_earlier_update_is_found_in_its_step() -> None:
    toy = Toy("8:11", 8)
    course = toy.search(plan_to(8))
    assert course.result is not None
    assert course.result.verdict == "found"
    assert [one.id for one in course.result.culprits] == ["8:11"]
    assert (course.cause.step, course.searched_earlier) == (8, 2)
    assert course.plan.checkpoint == "early"
    assert min(toy.trained[2:]) == 1  # the way to the earlier steps is trained once
    assert toy.trained.count(1) == 1
    way, tests = LAST - EARLIER - 1, most_tests(16)
    assert course.trained == len(toy.trained) <= 1 + tests + way + (EARLIER + 1) * (tests + 1)


def test_weights_that_no_sample_has_changed_are_told_after_the_earlier_steps() -> None:
    toy = Toy("nobody", 0)
    course = toy.search(plan_to(LAST))
    assert course.result is not None
    assert (course.result.verdict, course.searched_earlier) == ("spread", EARLIER)
    assert course.cause.step == LAST
    assert course.result.whole == RAISED
    assert course.tests == 2 + EARLIER


def test_an_update_that_was_refused_is_no_cause() -> None:
    course = Toy("8:1", 8).search(plan_to(8, skipped=(9,)))
    assert (course.cause.step, course.searched_earlier) == (8, 1)


def test_without_a_checkpoint_before_them_no_earlier_step_is_searched() -> None:
    course = Toy("9:1", 9).search(plan_to(9, earlier=0))
    assert course.result is not None
    assert (course.result.verdict, course.searched_earlier) == ("spread", 0)


def test_other_figures_than_those_of_the_run_end_the_search() -> None:
    plan = plan_to(LAST)
    odd = msgspec.structs.replace(plan.steps[0], loss=1.5)
    course = Toy("10:1", LAST).search(msgspec.structs.replace(plan, steps=[odd, plan.steps[1]]))
    assert course.result is not None
    assert course.result.verdict == "not repeated"
    assert course.reason.startswith("step 9 was repeated with loss 1 ")
