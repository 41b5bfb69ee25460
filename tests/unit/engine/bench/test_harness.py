from __future__ import annotations

from pathlib import Path

import pytest

from fttui.engine.errors import DataError
from tests.support.benchmarks import local_task, needs_harness


@needs_harness
@pytest.mark.long
def test_code_of_a_task_that_exits_is_an_error_of_the_task(tmp_path: Path) -> None:
    from fttui.engine.bench.harness import Tasks

    tasks = local_task(tmp_path)
    (tasks / "code.py").write_text("def leave(dataset):\n    raise SystemExit(0)\n")
    task = tasks / "words.yaml"
    task.write_text(task.read_text() + "process_docs: !function code.leave\n")
    with pytest.raises(DataError, match=r"task words cannot be loaded: SystemExit: 0"):
        Tasks(["words"], tasks)
