"""Three staged incidents on a real model: what the report names, and what recovery is worth.

    python -m tests.bench.incidents [--steps 100] [--keep FOLDER] [poison] [lr] [nan]

Trains the demo configuration shortened. The beginning is trained once; from its checkpoint every
incident goes on twice, with the same state and data: left alone, and with one `recover` as soon as
an alarm names something that calls for it. Prints the report's first lines and the losses; `--keep`
leaves the run folders for `fttui show`, and goes on from a beginning that is there.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec

from fttui.engine.config.load import load_config
from fttui.engine.protocol.codec import encode
from fttui.engine.protocol.events import (
    AnomalyRaised,
    AnyEvent,
    CommandFailed,
    ProbationEnded,
    RolledBack,
    RunEnded,
    StepFinished,
)
from fttui.engine.protocol.states import RunState
from fttui.engine.run.journal import FrameWriter
from fttui.engine.run.layout import RunDirectory, create_run
from fttui.engine.train.source import BatchSource
from fttui.engine.train.trainers import PairTrainer
from tests.support.training import Played, Script, ScriptedChronicle, play

ROOT = Path(__file__).resolve().parents[2]
BAD_STEPS = range(40, 46)
"""Steps of data that are bad, counted in the order of the data."""
CALLING = frozenset({"spike", "divergence", "nonfinite"})


@contextmanager
def _watching_data(change: Callable[[Any], None]) -> Iterator[dict[str, int]]:
    """Batches of the bad data are changed as they are fetched."""
    fetch, place = BatchSource.fetch, {"at": 0}

    def fetched(self: BatchSource, count: int) -> Any:
        place["at"] = self.position // count
        batches = fetch(self, count)
        if place["at"] in BAD_STEPS:
            for batch in batches:
                change(batch)
        return batches

    with mock.patch.object(BatchSource, "fetch", fetched):
        yield place


@contextmanager
def poison() -> Iterator[Script]:
    """Six batches of random tokens."""
    rng = random.Random(0)

    def garble(batch: Any) -> None:
        for name, value in _tensors(batch):
            if name.endswith("input_ids"):
                value.copy_(value.clone().random_(rng.randrange(100, 200), 40_000))

    with _watching_data(garble):
        yield Script()


def _tensors(batch: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(batch, dict):
        for key, value in batch.items():
            yield from _tensors(value, key)
    elif hasattr(batch, "copy_"):
        yield name, batch


@contextmanager
def lr() -> Iterator[Script]:
    """Somebody types 50 where 0.5 was meant."""
    yield Script(early=["lr scale 50"])


@contextmanager
def nan() -> Iterator[Script]:
    """The losses of six batches overflow, as in fp16; the guard halts when its budget is used."""
    compute = PairTrainer.compute_loss
    with _watching_data(lambda batch: None) as place:

        def overflowing(self: PairTrainer, *args: Any, **kwargs: Any) -> Any:
            loss = compute(self, *args, **kwargs)
            return loss * float("nan") if place["at"] in BAD_STEPS else loss

        with mock.patch.object(PairTrainer, "compute_loss", overflowing):
            yield Script()


INCIDENTS = {"poison": poison, "lr": lr, "nan": nan}


@contextmanager
def _one_key(recovering: bool) -> Iterator[None]:
    """A person who presses R at the first alarm that calls for it and if that failed, or never."""
    record, pressed = ScriptedChronicle.record, [not recovering]

    def watching(self: ScriptedChronicle, event: AnyEvent) -> None:
        record(self, event)
        if recovering and isinstance(event, ProbationEnded) and not event.passed:
            self.send("recover")
        if not isinstance(event, AnomalyRaised) or event.severity != "alarm":
            return
        if not pressed[0] and event.kind in CALLING:
            pressed[0] = True
            self.send(f"recover {event.id}")

    with mock.patch.object(ScriptedChronicle, "record", watching):
        yield


def _new_run(folder: Path, name: str, steps: int) -> RunDirectory:
    config = ROOT / "configs" / "demo.yaml"
    sets = [
        f"train.steps={steps}", "checkpoint.every=10", "checkpoint.keep=20", "eval.every=0",
        "policy.autopilot=off", "policy.probation=15", "guard.nonfinite_budget=3",
        "data.max_length=24", "train.schedule=constant", "model.quantize=none",
    ]  # fmt: skip
    loaded = load_config(config, sets)
    return create_run(
        folder, name=name, config=config, source=loaded.source, resolved=loaded.resolved,
        overrides=sets, version="0",
    )  # fmt: skip


def _beginning(folder: Path, steps: int) -> Path:
    """A run that was stopped where the incidents begin."""
    kept = next(folder.glob("beginning-*"), None)
    if kept is not None:
        return kept
    run = _new_run(folder, "beginning", steps)
    play(run, Script({BAD_STEPS[0]: ["stop"]}))
    return run.path


def _played(name: str, beginning: Path, *, recovering: bool) -> Played:
    run = beginning.with_name(f"{name}-{'one-key' if recovering else 'alone'}")
    shutil.copytree(beginning, run)
    with INCIDENTS[name]() as script, _one_key(recovering):
        script.states[RunState.HALTED] = [] if recovering else ["stop no-save"]
        played = play(RunDirectory(run), script, resume="last")
    _end(played)
    return played


def _end(played: Played) -> None:
    """The last word of a run, which a process of its own would have said."""
    last, state = played.records[-1], played.outcome.state
    ended = RunEnded(state=state, exit_code=0, checkpoint=played.outcome.checkpoint)
    record = msgspec.structs.replace(last, seq=last.seq + 1, event=ended)
    journal = FrameWriter(played.run.journal, played.run.journal_lock)
    journal.append(encode(record))
    journal.close()


def _tell(title: str, played: Played) -> None:
    steps = played.at(StepFinished)
    before = statistics.median(e.loss for s, e in steps if 25 <= s < BAD_STEPS[0])
    last = [e.loss for _, e in steps[-10:]]
    worst = max((e.loss for _, e in steps[BAD_STEPS[0] :]), default=float("nan"))
    print(
        f"  {title}: loss {before:.3f} before, {worst:.3g} at worst, "
        f"{statistics.median(last):.3f} over the last ten; ended {played.outcome.state.value} "
        f"at step {steps[-1][0]}"
    )
    for step, event in played.at(AnomalyRaised):
        if event.severity != "info":
            print(f"    step {step}: {event.severity} {event.kind}: {event.headline}")
    for step, back in played.at(RolledBack):
        print(f"    rolled back from {back.from_step} to {step}, {back.skipped_batches} skipped")
    for step, probation in played.at(ProbationEnded):
        print(f"    step {step}: probation {'passed' if probation.passed else 'failed'}")
    for failed in played.events(CommandFailed):
        print(f"    failed: {failed.command}: {failed.reason}")


def _report(played: Played) -> None:
    alarms = [e for e in played.events(AnomalyRaised) if e.severity == "alarm" and e.report]
    if not alarms:
        return
    text = (played.run.reports / f"{alarms[0].report}.md").read_text()
    print("    | " + "\n    | ".join(line[:150] for line in text.splitlines() if line.strip()))


def main() -> None:
    """Play the incidents asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("incidents", nargs="*", default=list(INCIDENTS))
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--keep", type=Path, help="folder for the runs; they are removed otherwise")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as passing:
        beginning = _beginning(arguments.keep or Path(passing), arguments.steps)
        for name in arguments.incidents:
            print(f"{name}: {INCIDENTS[name].__doc__} (load {os.getloadavg()[0]:.1f})", flush=True)
            for recovering in (False, True):
                started = time.monotonic()
                played = _played(name, beginning, recovering=recovering)
                title = "one key" if recovering else "left alone"
                _tell(f"{title} ({time.monotonic() - started:.0f} s)", played)
                if recovering:
                    _report(played)
            print(flush=True)


if __name__ == "__main__":
    main()
