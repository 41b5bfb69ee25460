"""Triplet and Matryoshka losses of whole batches equal those of sentence-transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fttui.engine.config.schema import ContrastiveConfig
from fttui.engine.losses.masks import Texts
from fttui.engine.train.objectives.contrastive import PairTexts
from fttui.engine.train.objectives.scored import pair_objective

PAIRS, WIDTH = 5, 8


class Given(torch.nn.Module):
    """A model whose embeddings are its inputs."""

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"sentence_embedding": features["x"]}

    def get_embedding_dimension(self) -> int:
        return WIDTH


def columns(count: int, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    found = torch.randn(count, PAIRS, WIDTH, generator=generator)
    return [column.requires_grad_() for column in found]


def as_texts(parts: list[Tensor], scores: Tensor | None = None) -> PairTexts:
    number = torch.arange(PAIRS)
    rows = len(parts) * PAIRS
    texts = Texts(
        hash=torch.arange(rows),
        label=torch.full((rows,), -1),
        pair=number.repeat(len(parts)),
        hard=(torch.arange(rows) >= 2 * PAIRS).long(),
    )
    return PairTexts(torch.cat(parts), texts, PAIRS, scores)


def ours(texts: PairTexts, **config: Any) -> Tensor:
    objective = pair_objective(ContrastiveConfig(**config))
    result = objective.compare(texts, range(PAIRS))
    assert result.count == PAIRS
    return result.loss_sum / PAIRS


def both(found: Tensor, expected: Tensor, inputs: list[Tensor]) -> None:
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    for mine, theirs in zip(
        torch.autograd.grad(found, inputs), torch.autograd.grad(expected, inputs), strict=True
    ):
        torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("margin", [0.1, 0.8])
def test_triplets_cost_what_they_cost_in_sentence_transformers(margin: float) -> None:
    losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    inputs = columns(3)
    metric = losses.TripletDistanceMetric.COSINE
    expected = losses.TripletLoss(Given(), metric, margin).compute_loss_from_embeddings(
        inputs, torch.zeros(0)
    )
    own: dict[str, Any] = {"own_hard_only": True, "in_batch": False, "margin": margin}
    both(ours(as_texts(inputs), kind="triplet", **own), expected, inputs)


def test_a_triplet_loss_takes_the_mean_over_all_negatives() -> None:
    inputs = columns(2)
    units = [torch.nn.functional.normalize(one, dim=-1) for one in inputs]
    cosines = units[0] @ units[1].T
    lead = torch.relu(cosines - cosines.diag().unsqueeze(1) + 0.4)
    others = ~torch.eye(PAIRS, dtype=torch.bool)
    expected = torch.stack([row[kept].mean() for row, kept in zip(lead, others, strict=True)])
    both(ours(as_texts(inputs), kind="triplet", margin=0.4), expected.mean(), inputs)


@pytest.mark.parametrize("kind", ["infonce", "triplet", "cosent", "cosine"])
def test_cut_vectors_cost_what_they_cost_in_sentence_transformers(kind: Any) -> None:
    losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    scored, model = kind in ("cosent", "cosine"), Given()
    inputs = columns(3 if kind == "triplet" else 2, seed=1)
    scores = torch.linspace(0, 1, PAIRS)
    inner = {
        "infonce": lambda: losses.MultipleNegativesRankingLoss(model, scale=20.0),
        "triplet": lambda: losses.TripletLoss(model, losses.TripletDistanceMetric.COSINE, 0.5),
        "cosent": lambda: losses.CoSENTLoss(model, scale=20.0),
        "cosine": lambda: losses.CosineSimilarityLoss(model),
    }[kind]()
    theirs = losses.MatryoshkaLoss(model, inner, [WIDTH, 5, 2])
    expected = theirs([{"x": one} for one in inputs], scores)
    more: dict[str, Any] = {"own_hard_only": True, "in_batch": False} if kind == "triplet" else {}
    found = ours(as_texts(inputs, scores if scored else None), kind=kind, dimensions=[5, 2], **more)
    both(found, expected, inputs)


def test_the_main_metric_is_measured_for_cut_vectors_too() -> None:
    objective = pair_objective(ContrastiveConfig(kind="infonce", dimensions=[3]))
    texts = as_texts(columns(2))
    found = objective.held_out(texts, range(PAIRS))
    alone = objective.measured(texts.cut(3), range(PAIRS))
    assert found["ndcg_at_10_3"] == alone["ndcg_at_10"] != found["ndcg_at_10"]
