from __future__ import annotations

from typing import Any

import pytest

from fttui.engine.config.sections.benchmarks import BenchmarksConfig
from fttui.engine.followers.benchmarks.waiting import WaitingCheckpoints
from fttui.engine.protocol.benchmarks.result import BenchmarkFinished, BenchmarkScore
from fttui.engine.protocol.events import AnyEvent, CheckpointSaved, Record
from tests.support.benchmarks import result

NUMBERS = {f"step-{step:06d}": at for at, step in enumerate((0, 2, 4, 6), 1)}


def saved(step: int, mean_of: tuple[str, ...] = ()) -> CheckpointSaved:
    name = f"step-{step:06d}"
    return CheckpointSaved(name=name, size_bytes=1, seconds=0.1, mean_of=[*mean_of])


def waiting(interval: int, tasks: int, *events: AnyEvent) -> WaitingCheckpoints:
    settings = BenchmarksConfig(tasks=["words", "other"][:tasks])
    found = WaitingCheckpoints(interval, settings.tasks, NUMBERS.get, settings.decides_by)
    for seq, event in enumerate(events, 1):
        found.add(Record(seq=seq, time=0.0, step=0, timeline=1, event=event))
    return found


def test_checkpoints_are_measured_in_their_order_once_each() -> None:
    found = waiting(1, 1, saved(0), saved(2), BenchmarkFinished(result=result(step=0)), saved(4))
    assert found.next == "step-000002"
    found.close("step-000002")
    assert found.next == "step-000004"
    found.close("step-000004")
    assert found.next is None


def test_every_second_checkpoint_by_its_place_in_the_run() -> None:
    found = waiting(2, 1, saved(0), saved(2), saved(4), saved(6))
    assert found.next == "step-000002"
    found.close("step-000002")
    assert found.next == "step-000006"


def test_means_and_removed_checkpoints_are_left_out() -> None:
    assert waiting(1, 1, saved(2, mean_of=("a", "b")), saved(99)).next is None


def test_a_checkpoint_with_some_of_the_results_still_waits() -> None:
    one = BenchmarkFinished(result=result(step=2))
    assert waiting(1, 2, saved(2), one).next == "step-000002"
    other = BenchmarkFinished(result=result(step=2, task="other"))
    assert waiting(1, 2, saved(2), one, other).next is None


@pytest.mark.parametrize("fields", [{"task": "unasked"}, {"examples": 3}, {"chat_template": True}])
def test_what_a_user_has_measured_besides_leaves_a_checkpoint_waiting(
    fields: dict[str, Any],
) -> None:
    own = BenchmarkFinished(result=result(step=2, **fields))
    assert waiting(1, 1, saved(2), own).next == "step-000002"


def test_the_tasks_of_a_group_are_its_results() -> None:
    parts = [BenchmarkFinished(result=result(step=2, task=one, of="words")) for one in ("a", "b")]
    assert waiting(1, 1, saved(2), *parts).next is None
    assert waiting(1, 2, saved(2), *parts).next == "step-000002"


def test_a_checkpoint_that_failed_is_not_tried_again() -> None:
    failed = BenchmarkFinished(result=result(step=2, scores={}, error="no such task"))
    assert waiting(1, 2, saved(2), failed).next is None


def test_the_base_is_known_once_a_result_has_it() -> None:
    with_base = {"acc": BenchmarkScore(value=0.5, base=0.4)}
    assert not waiting(1, 1, BenchmarkFinished(result=result())).knows_base
    assert waiting(1, 1, BenchmarkFinished(result=result(scores=with_base))).knows_base
