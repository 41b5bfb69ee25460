"""No engine outlives its test, not even a test that failed half-way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest


@pytest.fixture(autouse=True)
def _no_engine_left(tmp_path: Path) -> Iterator[None]:
    yield
    for process in psutil.process_iter(["cmdline"]):
        # Ranks that wait for a rank 0 that is gone are in no file: the command line names the run.
        words = process.info["cmdline"] or []
        if "fttui.engine" in words and any(word.startswith(f"{tmp_path}/") for word in words):
            with suppress(psutil.NoSuchProcess):
                process.kill()
