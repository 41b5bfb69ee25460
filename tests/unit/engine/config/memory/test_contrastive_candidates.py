from __future__ import annotations

import msgspec
import pytest

from fttui.engine.config.memory.contrastive_candidates import (
    candidate_facts,
    candidates_per_anchor,
    uses_gradcache,
)
from fttui.engine.config.schema import RunConfig


def config(contrastive=None, **train):
    return msgspec.convert(
        {
            "model": {"id": "m"},
            "data": {"train": "d.jsonl"},
            "train": {"steps": 1, **train},
            "task": "contrastive",
            "contrastive": {"kind": "infonce", **(contrastive or {})},
        },
        RunConfig,
    )


@pytest.mark.parametrize(
    ("changes", "train", "ahead", "candidates"),
    [
        ({}, {"batch": 1, "accumulate": 8}, True, 16),
        ({}, {"batch": 1, "accumulate": 1}, False, 2),
        ({}, {"batch": 1, "accumulate": 8, "devices": 2}, True, 32),
        ({"cross_device": False}, {"batch": 1, "accumulate": 8, "devices": 2}, True, 16),
        ({}, {"batch": 31, "accumulate": 2}, True, 124),
        ({}, {"batch": 32, "accumulate": 2}, False, 64),
        ({"cross_accumulation": "on"}, {"batch": 32, "accumulate": 2}, True, 128),
        ({"cross_accumulation": "off"}, {"batch": 1, "accumulate": 8}, False, 2),
        ({"own_hard_only": True}, {"batch": 1, "accumulate": 8}, True, 9),
        ({"in_batch": False}, {"batch": 4, "accumulate": 8}, False, 2),
        ({"hard_negatives": 0}, {"batch": 2, "accumulate": 4}, True, 8),
        ({"kind": "cosent"}, {"batch": 32, "accumulate": 2}, True, 64),
        ({"kind": "cosent"}, {"batch": 64, "accumulate": 2}, False, 64),
        ({"kind": "cosine"}, {"batch": 2, "accumulate": 4}, False, 1),
    ],
)
def test_where_candidates_come_from(changes, train, ahead, candidates):
    run = config(changes, **train)
    assert uses_gradcache(run) is ahead
    assert candidates_per_anchor(run) == candidates


def test_the_start_says_it():
    facts = candidate_facts(config(batch=2, accumulate=4, devices=2))
    assert facts == {
        "candidates per anchor": "up to 32 (batch of 2 × 4 micro-batches (GradCache) × 2 devices)"
    }


def test_the_start_names_how_many_scored_pairs_are_compared():
    run = config({"kind": "cosent"}, batch=2, accumulate=4)
    assert candidate_facts(run) == {
        "pairs compared": "up to 8 (batch of 2 × 4 micro-batches (GradCache))"
    }
    assert candidate_facts(config({"kind": "cosine"}, batch=2)) == {}
