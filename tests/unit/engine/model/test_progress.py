"""Loading reports its progress often enough, and not too often."""

from __future__ import annotations

import pytest

from fttui.engine.model.progress import _reported


@pytest.mark.parametrize(
    ("total", "reports"),
    [(0, [0]), (1, [0, 1]), (5, [0, 1, 2, 3, 4, 5]), (100, [*range(0, 100, 5), 100])],
)
def test_each_of_few_tensors_is_reported_and_twenty_of_many(total: int, reports: list[int]) -> None:
    seen: list[float] = []
    items = range(total)
    found = list(_reported(items, total, "Loading", lambda label, done, all_: seen.append(done)))
    assert found == list(items)
    assert seen == reports
