"""No engine outlives its test, not even a test that failed half-way."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from fttui.engine.run.endpoint import read_engine
from fttui.engine.run.layout import RunDirectory


@pytest.fixture(autouse=True)
def _no_engine_left(tmp_path: Path) -> Iterator[None]:
    yield
    for file in tmp_path.glob("**/engine.json"):
        engine = read_engine(RunDirectory(file.parent))
        if engine is not None and engine.alive:
            launcher = engine.launcher.pid if engine.launcher else engine.pid
            for pid in {launcher, engine.pid}:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
