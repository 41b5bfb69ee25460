"""The engine as `fttui run` starts it, over a random model in a published shape, with meters.

As a program, also under torchrun: `python -m tests.support.random_engine RUN_DIR`. The model's id
in the configuration is the shape. It imports everything, then waits for the file `go` in the run
folder, so that several can get ready at once. After training `meters-<rank>.json` lies there.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

import fttui.engine.train.session as session
from fttui.engine.__main__ import main as engine_main
from fttui.engine.model.load import equip
from fttui.engine.model.precision import compute_dtype
from fttui.engine.train.cuda_graphs.gradients import StaticGradients
from fttui.engine.train.distributed.agreement import PendingResult
from fttui.engine.train.distributed.rank_agreement import RankAgreement
from fttui.engine.train.loop.step_loop import StepLoop
from tests.support.device_clock import between, mark
from tests.support.shaped_run import PROFILED_AFTER
from tests.support.shapes import random_llama
from tests.support.tiny import byte_tokenizer

_POLL_S = 0.02


class Meters:
    """What a rank spends on the others, by step; measured without waiting for the device."""

    def __init__(self) -> None:
        self._agreement: list[float] = []
        self._now = 0.0
        self._averages: list[tuple[Any, Any]] = []

    def attach(self) -> None:
        """Time every word between ranks on the host, and the gradients' average on the device."""
        patched: Any = RankAgreement
        for name in ("start_max", "start_table", "share", "gather", "errors"):
            setattr(patched, name, self._timed(getattr(patched, name)))
        gradients: Any = StaticGradients
        gradients.average_over_ranks = self._marked(gradients.average_over_ranks)
        step_loop: Any = StepLoop
        step_loop.end_step = self._by_step(step_loop.end_step)

    def save(self, path: Path) -> None:
        """Seconds by step, as JSON."""
        averages = [between(*marks) for marks in self._averages]
        path.write_text(json.dumps({"agreement": self._agreement, "average": averages}))

    def _timed(self, method: Any) -> Any:
        def timed(*arguments: Any) -> Any:
            found = self._spend(method, *arguments)
            if isinstance(found, PendingResult):
                return PendingResult(lambda: self._spend(found.read))
            return found

        return timed

    def _spend(self, action: Any, *arguments: Any) -> Any:
        started = time.perf_counter()
        try:
            return action(*arguments)
        finally:
            self._now += time.perf_counter() - started

    def _marked(self, average: Any) -> Any:
        def marked(gradients: StaticGradients) -> None:
            began = mark()
            average(gradients)
            self._averages.append((began, mark()))

        return marked

    def _by_step(self, end_step: Any) -> Any:
        def ended(step_loop: StepLoop, **named: bool) -> bool:
            counted: bool = end_step(step_loop, **named)
            self._agreement.append(self._now)
            self._now = 0.0
            return counted

        return ended


def load_random(config: Any, device: Any, progress: Any) -> Any:
    """In place of `load_model`: the shape that the configuration names, adapted."""
    tokenizer = byte_tokenizer()
    base = random_llama(
        config.model.id,
        tokenizer,
        device,
        nf4=config.model.quantize == "nf4",
        dtype=compute_dtype(config.model.precision, device),
    )
    return equip(base, tokenizer, config, device, progress)


def get_ready(run: Path) -> None:
    """Make models at random from now on, and wait for the run's `go`."""
    patched: Any = session
    patched.load_model = load_random
    while not (run / "go").exists():
        time.sleep(_POLL_S)


def _profile_later(after: int) -> None:
    patched: Any = session
    add = patched.add_profiler

    def add_and_ask(*arguments: Any) -> None:
        add(*arguments)
        arguments[-1].profiler.ask(1, after=after)

    patched.add_profiler = add_and_ask


def main() -> int:
    """Be the engine, or one rank of it."""
    run = Path(sys.argv[1])
    get_ready(run)
    if after := int(os.environ.get(PROFILED_AFTER, "0")):
        _profile_later(after)
    meters = Meters()
    meters.attach()
    code = engine_main(sys.argv[1:])
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    meters.save(run / f"meters-{os.environ.get('RANK', '0')}.json")
    return code


if __name__ == "__main__":
    sys.exit(main())
