"""Measurements in processes of their own: one that fails, or takes too long, is a row as well."""

from __future__ import annotations

import math
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

Work = Callable[..., dict[str, Any]]
"""Measures; its module must not import torch, which reads the environment when it is imported."""
GROWING_SEGMENTS = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
"""How the engine asks torch to allocate."""


class Child:
    """A process that imports the training stack and waits for its turn."""

    def __init__(self, work: Work, *arguments: Any, environment: Mapping[str, str]) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, self._theirs = context.Pipe()
        whole = (work, arguments, dict(environment), self._theirs)
        self._process = context.Process(target=_wait_and_work, args=whole, daemon=True)
        self._started = False

    def start(self) -> None:
        """Begin to import, if that has not begun."""
        if not self._started:
            self._started = True
            self._process.start()
            self._theirs.close()

    def measure(self, limit_s: float) -> dict[str, Any]:
        """Let it work; what went wrong is under `failed`, the time it had under `took`."""
        self.start()
        found: dict[str, Any] = {"failed": "the process died"}
        started = time.monotonic()
        try:
            self._pipe.recv()
            started = time.monotonic()
            self._pipe.send("go")
            late = {"failed": f"took over {limit_s:.0f} s"}
            found = self._pipe.recv() if self._pipe.poll(limit_s) else late
        except (EOFError, OSError):
            pass
        self.end()
        return found | {"took": f"{time.monotonic() - started:.0f} s in all"}

    def end(self) -> None:
        """Let its memory go at once."""
        if self._started:
            self._process.kill()
            self._process.join()


def in_turn(
    children: Sequence[Child], limit_s: float, budget_s: float = math.inf
) -> Iterator[dict[str, Any]]:
    """One row after another, each alone; what does not begin within the budget is left out."""
    ends_s = time.monotonic() + budget_s
    for child in children:
        child.start()
    for child in children:
        if time.monotonic() < ends_s:
            yield child.measure(limit_s)
        else:
            child.end()
            yield {"failed": "left out: the time is up"}


def _wait_and_work(
    work: Work, arguments: tuple[Any, ...], environment: dict[str, str], answer: Any
) -> None:
    os.environ.update(environment)
    import trl  # noqa: F401

    import fttui.engine.train.session  # noqa: F401

    answer.send("ready")
    answer.recv()
    try:
        answer.send(work(*arguments))
    except Exception as error:  # noqa: BLE001 -- the table says what went wrong
        import traceback

        traceback.print_exc()
        answer.send({"failed": f"{type(error).__name__}: {str(error)[:300]}"})
    sys.stdout.flush()
