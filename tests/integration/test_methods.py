"""Every method and optimizer goes back exactly; the rows are those of `tests.bench.methods`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.methods import cases, measured

CASES = cases()


@pytest.mark.long
@pytest.mark.parametrize("fast", ["off", "static"])
@pytest.mark.parametrize("name", CASES)
def test_steps_after_a_rollback_are_those_before_it(tmp_path: Path, name: str, fast: str) -> None:
    task, sets = CASES[name]
    row = measured(tmp_path, task, sets, "cpu", fast)
    assert row.finite
    assert row.exact
    assert row.graphs == "static shapes" or row.graphs.startswith("off: ")
