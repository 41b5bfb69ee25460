"""Staged incidents with the engine: what the verdict on each is, over several seeds.

    python -m tests.bench.verdicts [--seeds 10] [--steps 100] [INCIDENT…]

A small random model learns texts of ten words, all of its weights trained, on a CPU. For each seed
the beginning is trained once; every incident goes on from it and is rolled back. Prints,
for each incident, in how many seeds the verdict was right, and what was said in each.

| incident | staged as | the right verdict |
|---|---|---|
| quiet | nothing | no alarm |
| odd record | one row of one step is random bytes | explained by that record; no recovery wanted |
| poisoned batch | all rows of six steps are random bytes | an alarm at once, of the batch |
| lr × 50 | `lr scale 50` | an alarm of the weights or the learning rate |
| non-finite | the loss of a step is NaN | nonfinite, its update refused |
| slow divergence | the learning rate grows by a third every second step | a divergence |
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

from fttui.engine.config.load import load_config
from fttui.engine.core.reports.anomaly_report import AnomalyReport, from_json
from fttui.engine.core.reports.row_losses import BATCH, ONE_RECORD, WEIGHTS
from fttui.engine.data.batches.batch_source import InMemoryBatches
from fttui.engine.data.tokens.examples import Example, TextExample
from fttui.engine.protocol.events import AnomalyRaised, AutopilotDecided, StepFinished
from fttui.engine.run.run_dir import RunDirectory, create_run
from fttui.engine.train.trainers.text import TextTrainer
from tests.support.tiny import tiny_llama
from tests.support.training import WORDS, Played, Script, play

BATCH_ROWS = 8
AT_ONCE = 3
"""Steps within which an alarm counts as raised at once."""
DANGERS = frozenset({"spike", "divergence", "grad_explosion", "nonfinite"})


@dataclass(frozen=True)
class Stage:
    """Where and how incidents are staged."""

    seed: int
    start: int
    """Step of the checkpoint that they go on from."""
    steps: int

    @property
    def bad(self) -> int:
        """The first step that something is wrong with."""
        return self.start + 4

    def rng(self, *more: object) -> random.Random:
        return random.Random(f"{self.seed} {more}")


@dataclass(frozen=True)
class Told:
    """The alarms and watches of a run from the first bad step on."""

    raised: list[tuple[int, AnomalyRaised]]
    reports: list[AnomalyReport]
    decided: list[AutopilotDecided]
    finished: dict[int, StepFinished]

    @property
    def dangerous(self) -> list[tuple[int, AnomalyRaised]]:
        return [(s, e) for s, e in self.raised if e.severity == "alarm" and e.kind in DANGERS]

    @property
    def words(self) -> str:
        said = [
            f"{step}: {event.severity} {event.headline} [{_origin(report)}]"
            for (step, event), report in zip(self.raised, self.reports, strict=True)
        ]
        return "; ".join(said) or "nothing"


def _origin(report: AnomalyReport) -> str:
    rows = report.evidence.rows
    return "no rows" if rows is None else rows.origin or "unclear"


class Stager(dict[int, list[str]]):
    """Stages one incident after the other in one run, and rolls back after each.

    It is the table of commands of a `Script`: the step that has been journaled is asked for once.
    """

    def __init__(self, stage: Stage, names: list[str]) -> None:
        super().__init__()
        self._stage = stage
        self._names = list(names)

    @property
    def name(self) -> str:
        """The incident that is staged now; empty in the beginning."""
        return self._names[0] if self._names else ""

    def pop(self, step: int, *default: Any) -> Any:
        stage = self._stage
        if step < stage.steps:
            return _typed(self.name, step, stage)
        self._names.pop(0)
        return [f"rollback {stage.start} lr=1"] if self._names else ["stop no-save"]

    @contextmanager
    def staging(self) -> Iterator[Script]:
        """Let the data and the losses of the run be those of the incidents."""
        take, compute, stager = InMemoryBatches.take, TextTrainer.compute_loss, self

        def taken(batches: InMemoryBatches, position: int, *out: Any) -> list[Example]:
            bad = _bad_rows(stager.name, position + 1, stager._stage)
            found = take(batches, position, *out)
            return [_nonsense(e, stager._stage) if n in bad else e for n, e in enumerate(found)]

        def computed(trainer: TextTrainer, *args: Any, **kwargs: Any) -> Any:
            loss = compute(trainer, *args, **kwargs)
            bad = trainer.state.global_step + 1 == stager._stage.bad
            return loss * float("nan") if bad and stager.name == "non-finite" else loss

        with (
            mock.patch.object(InMemoryBatches, "take", taken),
            mock.patch.object(TextTrainer, "compute_loss", computed),
        ):
            yield Script(self)


def _typed(name: str, step: int, stage: Stage) -> list[str]:
    """Return the commands that are typed after a step."""
    if name == "lr x 50" and step == stage.bad - 1:
        return ["lr scale 50"]
    late = step - stage.bad
    if name == "slow divergence" and late >= 0 and late % 2 == 0:
        return [f"lr scale {1.33 ** (late / 2 + 1):.4g}"]
    return []


def _bad_rows(name: str, step: int, stage: Stage) -> range:
    """Return the rows of a step that are random bytes."""
    if name == "odd record" and step == stage.bad:
        return range(stage.seed % BATCH_ROWS, stage.seed % BATCH_ROWS + 1)
    if name == "poisoned batch" and step in range(stage.bad, stage.bad + 6):
        return range(BATCH_ROWS)
    return range(0)


def _nonsense(example: Example, stage: Stage) -> Example:
    assert isinstance(example, TextExample)
    rng = stage.rng(example.id)
    ids = [rng.randrange(10, 250) for _ in example.input_ids]
    labels = [i if known >= 0 else known for i, known in zip(ids, example.labels, strict=True)]
    return replace(example, input_ids=ids, labels=labels)


def _quiet(told: Told, stage: Stage) -> bool:
    return not told.dangerous


def _odd(told: Told, stage: Stage) -> bool:
    explained = [s for s, e in told.raised if e.explained_by and not e.ways]
    return stage.bad in explained and not told.dangerous and not told.decided


def _poisoned(told: Told, stage: Stage) -> bool:
    first = told.dangerous[0][0] if told.dangerous else -1
    origins = {r.evidence.rows.origin for r in told.reports if r.evidence.rows}
    return 0 <= first - stage.bad < AT_ONCE and BATCH in origins and ONE_RECORD not in origins


def _lr(told: Told, stage: Stage) -> bool:
    found = [r for r in told.reports if r.severity == "alarm" and r.kind in DANGERS]
    by = any(r.evidence.rows is not None and r.evidence.rows.origin == WEIGHTS for r in found)
    named = any("learning rate" in r.causes[0] for r in found if r.causes)
    return bool(found) and not any(e.explained_by for _, e in told.raised) and (by or named)


def _nonfinite(told: Told, stage: Stage) -> bool:
    at = [s for s, e in told.dangerous if e.kind == "nonfinite"]
    return at[:1] == [stage.bad] and told.finished[stage.bad].skipped


def _slow(told: Told, stage: Stage) -> bool:
    kinds = {e.kind for _, e in told.dangerous}
    return "divergence" in kinds and not any(e.explained_by for _, e in told.raised)


INCIDENTS: dict[str, Callable[[Told, Stage], bool]] = {
    "quiet": _quiet,
    "odd record": _odd,
    "poisoned batch": _poisoned,
    "non-finite": _nonfinite,
    "slow divergence": _slow,
    "lr x 50": _lr,
}


def _texts(path: Path, seed: int) -> Path:
    rng = random.Random(seed)
    rows = [
        {"prompt": f"say {number}", "completion": " ".join(rng.choice(WORDS) for _ in range(5))}
        for number in range(600)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def _new_run(folder: Path, stage: Stage) -> RunDirectory:
    data = _texts(folder / "texts.jsonl", stage.seed)
    config = folder / "staged.yaml"
    config.write_text(
        f"""
name: staged
task: sft
model: {{id: {tiny_llama(folder, stage.seed, hidden=64)}, quantize: none}}
adapter: none
data: {{train: {data}, max_length: 48, eval_fraction: 0, accept: [all]}}
train: {{steps: {stage.steps + 1}, batch: {BATCH_ROWS}, accumulate: 1, lr: 3e-3, warmup: 10,
         schedule: constant, seed: {stage.seed}, fast: off, clip: 1.0}}
checkpoint: {{every: {stage.start}, keep: 20}}
eval: {{every: 0}}
policy: {{autopilot: propose}}
"""
    )
    loaded = load_config(config, [])
    return create_run(
        folder, name="staged", config=config, source=loaded.source, resolved=loaded.resolved,
        overrides=[], version="0",
    )  # fmt: skip


def _told(played: Played, stage: Stage, timeline: int) -> Told:
    records = [r for r in played.records if r.timeline == timeline and r.step >= stage.bad]
    raised = [
        (r.step, r.event)
        for r in records
        if isinstance(r.event, AnomalyRaised)
        and r.event.severity != "info"
        and r.event.kind in DANGERS
    ]
    reports = [
        from_json((played.run.reports / f"{event.report}.json").read_bytes()) for _, event in raised
    ]
    finished = {r.step: r.event for r in records if isinstance(r.event, StepFinished)}
    decided = [r.event for r in records if isinstance(r.event, AutopilotDecided)]
    return Told(raised, reports, decided, finished)


def _play_seed(folder: Path, stage: Stage, names: list[str]) -> dict[str, bool]:
    stager = Stager(stage, names)
    with stager.staging() as script:
        played = play(_new_run(folder, stage), script, name="staged")
    found = {}
    for timeline, name in enumerate(names, 1):
        told = _told(played, stage, timeline)
        found[name] = INCIDENTS[name](told, stage)
        said = "right" if found[name] else "WRONG"
        print(f"seed {stage.seed} {said} {name}: {told.words}", flush=True)
    return found


def main() -> None:
    """Play the incidents asked for and print the verdicts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("incidents", nargs="*", help="of: " + ", ".join(INCIDENTS))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--start", type=int, default=60, help="step at which incidents begin")
    parser.add_argument("--steps", type=int, default=94)
    asked = parser.parse_args()
    names = asked.incidents or list(INCIDENTS)
    right = dict.fromkeys(names, 0)
    for seed in range(asked.first, asked.first + asked.seeds):
        started = time.monotonic()
        stage = Stage(seed, asked.start, asked.steps)
        with tempfile.TemporaryDirectory() as folder:
            for name, good in _play_seed(Path(folder), stage, names).items():
                right[name] += good
        took, load = time.monotonic() - started, os.getloadavg()[0]
        print(f"seed {seed}: {took:.0f} s at load {load:.1f}", flush=True)
    for name in names:
        print(f"{name}: right in {right[name]} of {asked.seeds} seeds")


if __name__ == "__main__":
    main()
