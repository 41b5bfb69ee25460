"""Runs on scored pairs: one loss for the whole step, on one rank and on two, and its metric."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fttui.engine.protocol.events import EvalFinished, RunStarted, StepFinished
from tests.support.matrix import in_part
from tests.support.ranks import in_ranks
from tests.support.training import new_run, play, read_records, write_scored_pairs

from .test_gradcache import compared, play_as, play_compared, written


def test_cosent_over_micro_batches_is_cosent_of_the_step(tmp_path: Path) -> None:
    run = written(
        tmp_path / "run",
        contrastive__kind="cosent",
        contrastive__learn_temperature="true",
        train__accumulate=8,
        train__steps=3,
    )
    errors: list[float] = []
    with compared(errors):
        played = play(run)
    assert len(errors) == 3
    assert max(errors) <= 1e-5, errors
    (started,) = played.events(RunStarted)
    assert started.facts["pairs compared"] == "up to 8 (batch of 1 × 8 micro-batches (GradCache))"
    assert started.facts["scores"] == "0 to 5, mean 2.47; only their order is used"
    step = played.events(StepFinished)[0]
    assert {"cosine", "score", "ordered", "temperature"} <= set(step.extra)
    assert step.extra.keys().isdisjoint({"pos_cos", "top1", "candidates"})


@pytest.mark.long
def test_cosent_on_two_ranks_is_cosent_of_the_step(tmp_path: Path) -> None:
    run = written(
        tmp_path / "run",
        contrastive__kind="cosent",
        train__accumulate=4,
        train__steps=3,
        train__devices=2,
    )
    assert in_ranks(2, play_compared, run, tmp_path / "errors") == [0, 0]
    for rank in (0, 1):
        errors = json.loads((tmp_path / f"errors.{rank}").read_text())
        assert len(errors) == 3
        assert max(errors) <= 1e-5, errors


@pytest.mark.parametrize("kind", in_part(["cosent", "cosine"], ["cosine"]))
def test_two_ranks_measure_what_one_with_twice_the_batch_does(tmp_path: Path, kind: str) -> None:
    same: dict[str, Any] = {
        "contrastive__kind": kind,
        "contrastive__cross_accumulation": "off",
        "train__steps": 3,
        "train__optimizer": "sgd",
        "train__lr": 0.2,
        "adapter__dropout": 0.0,
        "checkpoint__every": 0,
        "data__eval_limit": 5,
    }
    if kind == "cosine":
        same["contrastive__score_range"] = "[0, 5]"
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    one = new_run(tmp_path / "one", train__batch=4, **same)
    two = new_run(tmp_path / "two", train__batch=2, train__devices=2, **same)
    assert in_ranks(2, play_as, two) == [0, 0]
    alone, both = play(one).records, read_records(two)
    steps = [
        [
            {"loss": r.event.loss, **r.event.parts, **r.event.extra}
            for r in records
            if isinstance(r.event, StepFinished)
        ]
        for records in (alone, both)
    ]
    metrics = [
        [r.event.metrics for r in records if isinstance(r.event, EvalFinished)]
        for records in (alone, both)
    ]
    assert set(metrics[0][0]) == {"loss", "ce", "contrastive", "spearman"}
    for mine, theirs in (*zip(*steps, strict=True), *zip(*metrics, strict=True)):
        assert theirs == pytest.approx(mine, rel=1e-5, abs=1e-5)


def test_training_follows_scores_that_contradict_the_words(tmp_path: Path) -> None:
    held = write_scored_pairs(tmp_path / "held.jsonl", seed=1)
    run = new_run(
        tmp_path,
        contrastive__kind="cosent",
        contrastive__ce_weight=0,
        contrastive__weight=1,
        train__lr=0.05,
        train__steps=20,
        train__batch=8,
        eval__at_start="true",
        checkpoint__every=0,
        data__eval=held,
    )
    for path in (held, tmp_path / "scored.jsonl"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        inverted = [{**row, "score": 5 - row["score"]} for row in rows]
        path.write_text("".join(json.dumps(row) + "\n" for row in inverted))
    first, *_, last = (event.metrics for event in play(run).events(EvalFinished))
    assert first["spearman"] < last["spearman"]
    assert first["contrastive"] > last["contrastive"]
