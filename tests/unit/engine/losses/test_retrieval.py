from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fttui.engine.losses.retrieval import retrieval_sums, triplet_sums

from . import oracle

EYE = torch.eye(4)


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(seed=st.integers(0, 2**16), texts=st.integers(1, 14))
def test_agrees_with_the_oracle(seed: int, texts: int) -> None:
    anchors, corpus = random(3, 4, seed=seed), random(texts, 4, seed=seed + 1)
    relevant = random(3, texts, seed=seed + 2) > 0.7
    relevant[:, seed % texts] = True
    found = retrieval_sums(anchors, corpus, relevant)
    expected = oracle.retrieval(anchors.tolist(), corpus.tolist(), relevant.tolist())
    assert {name: float(value) for name, value in found.items()} == pytest.approx(expected)


def test_the_second_place() -> None:
    anchors = torch.tensor([[1.0, 0.1, 0.0, 0.0]])
    relevant = torch.tensor([[False, True, False, False]])
    found = {name: float(v) for name, v in retrieval_sums(anchors, EYE, relevant).items()}
    assert found == pytest.approx(
        {"recall_at_1": 0.0, "recall_at_5": 1.0, "mrr": 0.5, "ndcg_at_10": 1 / math.log2(3)}
    )


def test_equal_vectors_are_not_found() -> None:
    same = torch.ones(6, 4)
    relevant = torch.eye(6, dtype=torch.bool)
    found = retrieval_sums(same, same, relevant)
    assert found["recall_at_1"].item() == found["recall_at_5"].item() == 0
    assert float(found["mrr"]) == pytest.approx(1.0)


def test_triplets_count_only_what_is_strictly_nearer() -> None:
    negatives = torch.stack((EYE[1], EYE[0], EYE[2]))
    owner = torch.tensor([0, 0, 1])
    assert int(triplet_sums(EYE[:2], EYE[:2], negatives, owner)) == 2
    none = torch.zeros(0, dtype=torch.int64)
    assert int(triplet_sums(EYE[:2], EYE[:2], torch.zeros(0, 4), none)) == 0
