"""The same surroundings for every test, on every machine."""

from __future__ import annotations

import gc
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

FIXED = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TZ": "UTC",
    "COLUMNS": "120",
    "LINES": "40",
}
FREE = ("NO_COLOR", "FORCE_COLOR", "FTTUI_RUNS", "PYTHONBREAKPOINT", "WORLD_SIZE", "RANK")
SELDOM = (20_000, 20, 20)
"""Thresholds of the garbage collection; the usual ones, 700, 10 and 10, are for small programs."""
FREEZE_S = 3.0
"""Seconds of processor time between two exemptions from the garbage collection."""
_runtime = pytest.StashKey[Path]()
_frozen_at_s = pytest.StashKey[float]()


def pytest_configure(config: pytest.Config) -> None:
    """Set the environment before anything is imported that reads it."""
    os.environ.update(FIXED)
    for name in FREE:
        os.environ.pop(name, None)
    # Tests start hundreds of processes; without bytecode on disk each would compile fttui anew.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    time.tzset()
    # A busy machine is no failure.
    # A failure of `make test` has to be repeatable, so its examples are always the same ones;
    # `make test-long` draws others each time, and more (--hypothesis-profile random).
    random = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("random", random)
    settings.register_profile("fixed", random, derandomize=True, max_examples=40)
    settings.load_profile("fixed")
    # Socket paths must stay short, and no test may meet the user's own runs.
    folder = Path(tempfile.mkdtemp(prefix="ft-", dir="/tmp"))
    os.environ["XDG_RUNTIME_DIR"] = str(folder)
    os.environ["XDG_STATE_HOME"] = str(folder / "state")
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    config.stash[_runtime] = folder


def pytest_collection(session: pytest.Session) -> None:
    """Search for no garbage among modules and tests while they are loaded."""
    gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Leave what is loaded out of all later searches for garbage, else a fifth of the time."""
    _freeze(session.config)
    gc.set_threshold(*SELDOM)
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, None, None]:
    """Leave out what outlives a module, too: every training searches all the rest several times."""
    yield
    other = nextitem is None or nextitem.path != item.path
    if other and time.process_time() - item.config.stash[_frozen_at_s] > FREEZE_S:
        gc.collect()
        _freeze(item.config)


def _freeze(config: pytest.Config) -> None:
    gc.freeze()
    config.stash[_frozen_at_s] = time.process_time()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave nothing behind."""
    if folder := config.stash.get(_runtime, None):
        shutil.rmtree(folder, ignore_errors=True)
