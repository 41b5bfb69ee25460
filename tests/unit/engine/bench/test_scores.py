from __future__ import annotations

from typing import Any

import pytest

from fttui.engine.bench.scores import read_scores, significant

COUNT = {"original": 40, "effective": 10}


def found(rows: dict[str, dict[str, Any]], **more: Any) -> dict[str, Any]:
    counts = {name: COUNT for name in rows if not name.startswith("group")}
    return {"results": rows, "n-samples": counts, "n-shot": {}, "versions": {}, **more}


def test_values_errors_and_filters_of_a_task_are_read() -> None:
    row = {
        "alias": "math",
        "name": "math",
        "sample_len": 10,
        "acc,none": 0.5,
        "acc_stderr,none": 0.1,
        "exact match,strict match": 0.25,
        "exact match_stderr,strict match": "N/A",
    }
    (one,), left_out = read_scores(
        found({"math": row}, versions={"math": 2.0}, **{"n-shot": {"math": 3}}), "math"
    )
    assert left_out == []
    assert {name: (s.value, s.stderr) for name, s in one.scores.items()} == {
        "acc": (0.5, 0.1),
        "exact-match.strict-match": (0.25, None),
    }
    assert (one.task, one.examples, one.total) == ("math", 10, 40)
    assert (one.fewshot, one.version) == (3, "2.0")


GROUP = {
    "group": {"acc,none": 0.4, "acc_stderr,none": 0.05},
    "part_a": {"acc,none": 0.3},
    "part_b": {"acc,none": 0.5},
}
INNER = {"group_subtasks": {"group": ["part_a", "part_b"]}}


def test_a_group_with_a_value_counts_as_one_task() -> None:
    (one,), left_out = read_scores(found(GROUP, **INNER), "group")
    assert (one.task, one.scores["acc"].value) == ("group", 0.4)
    assert (one.examples, one.total) == (20, 80)
    assert left_out == ["part_a", "part_b"]


def test_the_tasks_of_a_group_without_a_value_are_returned() -> None:
    rows = GROUP | {"group": {"alias": "group"}}
    tasks, left_out = read_scores(found(rows, **INNER), "group")
    assert [one.task for one in tasks] == ["part_a", "part_b"]
    assert left_out == []


def test_a_task_without_values_gives_none() -> None:
    assert read_scores(found({"odd": {"acc,none": "N/A"}}), "odd") == ([], [])


@pytest.mark.parametrize(("better", "wrong"), [(True, []), (False, ["acc"]), (None, [])])
def test_a_metric_whose_name_misleads_is_named(better: bool | None, wrong: list[str]) -> None:
    rows = {"odd": {"acc,none": 0.5, "perplexity,none": 4.0}}
    higher = {"odd": {"acc": better, "perplexity": False}}
    (one,), _ = read_scores(found(rows, higher_is_better=higher), "odd")
    assert one.upside_down == wrong


def test_a_change_within_the_errors_is_not_significant() -> None:
    assert significant(0.3, 0.1, 0.1)
    assert not significant(-0.2, 0.1, 0.1)
    assert not significant(0.3, 0.1, None)
