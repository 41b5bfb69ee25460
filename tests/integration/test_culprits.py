"""A search finds the poisoned sample, and the run goes on as if there had been no search."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fttui.engine.protocol.event_parts import CulpritSearch
from fttui.engine.protocol.events import (
    AnomalyRaised,
    CommandApplied,
    CommandFailed,
    CulpritsFound,
    ProgressMade,
)
from fttui.engine.run.checkpoint_store import CheckpointStore
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.train.distributed.place import RankPlace
from tests.support.ranks import in_ranks
from tests.support.training import (
    WORDS,
    Played,
    Script,
    new_run,
    play,
    read_records,
)

pytestmark = pytest.mark.timeout(300)
STEPS, POISONED = 18, "texts:22"
RECIPE: dict[str, Any] = {
    "train__steps": STEPS,
    "train__warmup": 4,
    "train__schedule": "constant",
    "train__ema": 0.9,
    "adapter__kind": "none",
    "data__eval_fraction": 0,
    "data__max_length": 64,
    "eval__every": 0,
    "checkpoint__every": 8,
}


def poisoned(folder: Path, **sets: Any) -> RunDirectory:
    """A run on easy texts, of which one is noise."""
    folder.mkdir(parents=True)
    run = new_run(folder, "sft", **RECIPE, **sets)
    rng = random.Random(0)
    rows = [
        {"prompt": f"say {WORDS[n % 10]}", "completion": " " + " ".join([WORDS[n % 10]] * 3)}
        for n in range(64)
    ]
    rows[21]["completion"] = "".join(rng.choice("ZQX#%&@!~^{}[]") for _ in range(60))
    (folder / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run


def bad_step(run: RunDirectory) -> int:
    """The step of the second epoch that trains on the poisoned sample."""
    losses = played(run).losses()
    return max(range(9, 17), key=lambda step: losses[step])


def played(run: RunDirectory) -> Played:
    return Played(run, None, read_records(run))  # type: ignore[arg-type]  # it has ended


def alarm(script: Script, step: int) -> Script:
    """The script with an alarm at a step, as the detector would raise it."""

    def raise_it() -> None:
        log: Any = script.senders[-1].__self__  # type: ignore[attr-defined]  # a method
        headline = "loss is out of line"
        log.record(AnomalyRaised(id="bad", kind="spike", severity="alarm", headline=headline))

    return replace(script, calls={step: raise_it})


def searched(run: RunDirectory) -> list[CulpritSearch]:
    return [event.search for event in played(run).events(CulpritsFound)]


def files(run: RunDirectory) -> dict[str, str]:
    """Hashes of weights, average, optimizer, schedule and generators at the end."""
    found = CheckpointStore(run).all()[-1].files
    return {n: f.sha256 for n, f in found.items() if n not in ("state.msgpack", "config.json")}


def test_the_poisoned_sample_is_found_and_the_run_is_untouched(tmp_path: Path) -> None:
    plain = poisoned(tmp_path / "plain")
    play(plain)
    step = bad_step(plain)
    run = poisoned(tmp_path / "searched")
    script = Script(commands={step + 2: ["lr scale 0.5", "lr reset", "culprit", "eval"]})
    play(run, alarm(script, step))
    (found,) = searched(run)
    assert (found.verdict, [one.id for one in found.culprits]) == ("found", [POISONED])
    assert found.difference == 0
    assert (found.checkpoint, found.steps) == ("step-000008", step - 9)
    assert (found.samples, found.tests) == (8, 6)
    (culprit,) = found.culprits
    assert culprit.place.endswith("texts.jsonl:22")
    assert "say beta" in culprit.text
    assert "".join(culprit.pieces[:8]).endswith("say beta")
    assert culprit.loss == played(run).losses()[step] == found.loss
    assert culprit.loss_share is not None
    assert culprit.loss_share > 0.8
    (applied,) = [e for e in played(run).events(CommandApplied) if e.command == "culprit"]
    assert applied.new.startswith(f"step {step} again, from step-000008 on, then at most")
    labels = {event.label for event in played(run).events(ProgressMade)}
    assert "culprit of bad" in labels
    steps = [record.step for record in played(run).records]
    assert steps == sorted(steps)
    assert played(run).losses() == played(plain).losses()
    assert files(run) == files(plain)


@pytest.mark.long
def test_a_replay_follows_rollbacks_settings_skipped_data_and_quarantine(tmp_path: Path) -> None:
    commands = {
        9: ["clip 0.1", "quarantine texts:3 texts:4"],
        10: ["rollback 8 skip=1"],
        11: ["lr scale 0.3"],
        12: ["skip 1"],
        16: ["pause"],
    }
    runs = [poisoned(tmp_path / name) for name in ("searched", "plain")]
    for run in runs:
        script = Script(commands={step: list(texts) for step, texts in commands.items()})
        script.commands[16] = ["culprit"] if run is runs[0] else []
        play(run, alarm(script, 15))
    (found,) = searched(runs[0])
    assert found.verdict in ("found", "spread")
    assert (found.difference, found.reason) == (0, "")
    assert found.steps == 6 or (found.verdict, found.earlier) == ("spread", 3)
    assert played(runs[0]).losses() == played(runs[1]).losses()
    assert files(runs[0]) == files(runs[1])


def test_a_stop_ends_the_search_and_what_cannot_be_searched_says_why(tmp_path: Path) -> None:
    run = poisoned(tmp_path / "run")
    commands = {3: ["culprit"], 14: ["culprit nobody"], 15: ["culprit", "stop"]}
    play(run, alarm(Script(commands=commands), 13))
    refused = [event.reason for event in played(run).events(CommandFailed)]
    assert refused == [
        "no anomaly of the loss or the gradient norm was raised yet",
        "no anomaly has the id nobody",
    ]
    (found,) = searched(run)
    assert (found.verdict, found.reason) == ("interrupted", "another command came")
    assert max(played(run).losses()) == 15
    saved, plain = CheckpointStore(run).all()[-1], poisoned(tmp_path / "plain")
    assert saved.step == 15
    play(plain, Script(commands={15: ["stop"]}))
    assert files(run) == files(plain)


@pytest.mark.long
def test_the_steps_before_are_searched_and_the_run_is_untouched(tmp_path: Path) -> None:
    plain = poisoned(tmp_path / "plain", train__lr=0.02)
    play(plain)
    step = bad_step(plain) + 1  # the poisoned update before it did no harm
    run = poisoned(tmp_path / "searched", train__lr=0.02)
    play(run, alarm(Script(commands={step + 1: ["culprit"]}), step))
    (found,) = searched(run)
    assert (found.verdict, found.earlier, found.cause_step) == ("spread", 3, step)
    assert (found.difference, found.tests, found.reason) == (0, 5, "")
    (applied,) = [e for e in played(run).events(CommandApplied) if e.command == "culprit"]
    assert "the samples of the 3 steps before it" in applied.new
    assert played(run).losses() == played(plain).losses()
    assert files(run) == files(plain)


def _train(place: RankPlace, run: RunDirectory) -> None:
    play(run, Script(commands={15: ["culprit"]}), place=place)


@pytest.mark.long
def test_a_poisoned_row_of_another_rank_is_named_with_rank_and_line(tmp_path: Path) -> None:
    sets = {"train__devices": 2, "train__batch": 2, "train__lr": 0.02}
    run = poisoned(tmp_path / "run", **sets)
    assert in_ranks(2, _train, run) == [0, 0]
    step = bad_step(run)
    alarms = [e for e in played(run).events(AnomalyRaised) if e.id == f"spike-{step}"]
    (alarm,) = alarms
    place = f"{tmp_path / 'run' / 'texts.jsonl'}:22"
    assert (alarm.severity, alarm.explained_by) == ("watch", place)
    report = (run.reports / f"spike-{step}.md").read_text()
    (odd,) = [line for line in report.splitlines() if "**odd**" in line]
    assert odd.startswith("- current, rank 1: **odd**, loss ")
    assert f"`{place}`" in odd
    rows = json.loads((run.reports / f"spike-{step}.json").read_text())["evidence"]["samples"]
    assert {row["rank"] for row in rows if row["batch"] == "current"} == {0, 1}
    assert all(row["loss"] is not None for row in rows)
    (found,) = searched(run)
    (culprit,) = found.culprits
    assert (culprit.id, culprit.rank, culprit.place) == (POISONED, 1, place)
    assert found.difference == 0


def _search(place: RankPlace, runs: list[RunDirectory], step: int) -> None:
    for run in runs:
        commands = {step + 1: ["culprit"]} if run is runs[0] else {}
        play(run, alarm(Script(commands=commands), step), place=place)


def test_two_ranks_search_together(tmp_path: Path) -> None:
    runs = [
        poisoned(tmp_path / name, train__devices=2, train__batch=2)
        for name in ("searched", "plain")
    ]
    assert in_ranks(2, _search, runs, 14) == [0, 0]
    step = bad_step(runs[1])
    (found,) = searched(runs[0])
    assert found.difference == 0
    assert found.samples == 8
    assert (found.verdict == "found") == (step == 14)
    assert played(runs[0]).losses() == played(runs[1]).losses()
    assert files(runs[0]) == files(runs[1])
