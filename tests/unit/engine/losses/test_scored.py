"""The losses of scored pairs equal those of sentence-transformers, gradients included."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr  # type: ignore[import-untyped]  # no stubs
from torch import Tensor

from fttui.engine.losses import scored
from fttui.engine.losses.scored import (
    cosent,
    ordered_share,
    pair_cosines,
    spearman,
    squared_errors,
)

ANY_MODEL: Any = torch.nn.Identity()
"""The losses are given embeddings, so the model takes no part."""
LEVELS = (0.0, 0.2, 0.5, 0.5, 1.0)


def pairs(count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Anchors and positives with a gradient, and scores of which many are equal."""
    generator = torch.Generator().manual_seed(seed)
    anchors, positives = torch.randn(2, count, 6, generator=generator).unbind()
    drawn = torch.randint(len(LEVELS), (count,), generator=generator)
    return anchors.requires_grad_(), positives.requires_grad_(), torch.tensor(LEVELS)[drawn]


def both(loss: Tensor, expected: Tensor, inputs: tuple[Tensor, Tensor]) -> None:
    """Compare two losses of the same inputs, and their gradients."""
    assert loss.item() == pytest.approx(expected.item(), abs=1e-6, rel=1e-6)
    found = torch.autograd.grad(loss, inputs)
    for mine, theirs in zip(found, torch.autograd.grad(expected, inputs), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("temperature", [0.05, 0.2, 1.0])
@pytest.mark.parametrize(("count", "seed"), [(2, 1), (7, 2), (40, 3)])
def test_cosent_is_that_of_sentence_transformers(
    monkeypatch: pytest.MonkeyPatch, temperature: float, count: int, seed: int
) -> None:
    from sentence_transformers.sentence_transformer.losses import CoSENTLoss

    monkeypatch.setattr(scored, "COMPARED_AT_ONCE", 3 * count)
    anchors, positives, scores = pairs(count, seed)
    theirs = CoSENTLoss(ANY_MODEL, scale=1 / temperature)
    expected = theirs.compute_loss_from_embeddings([anchors, positives], scores)
    found = cosent(pair_cosines(anchors, positives), scores, temperature)
    both(found, expected, (anchors, positives))


@pytest.mark.parametrize(("count", "seed"), [(1, 1), (7, 2), (40, 3)])
def test_cosine_is_that_of_sentence_transformers(count: int, seed: int) -> None:
    from sentence_transformers.sentence_transformer.losses import CosineSimilarityLoss

    anchors, positives, scores = pairs(count, seed)
    theirs = CosineSimilarityLoss(ANY_MODEL)
    expected = theirs.compute_loss_from_embeddings([anchors, positives], scores)
    found = squared_errors(pair_cosines(anchors, positives), scores).mean()
    both(found, expected, (anchors, positives))


def test_cosent_by_hand() -> None:
    cosines, scores = torch.tensor([0.1, 0.4, 0.3]), torch.tensor([3.0, 1.0, 1.0])
    expected = math.log(1 + math.exp((0.4 - 0.1) * 2) + math.exp((0.3 - 0.1) * 2))
    assert cosent(cosines, scores, 0.5).item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("count", [1, 3])
def test_equal_scores_give_no_loss_and_a_gradient_of_zero(count: int) -> None:
    cosines = torch.linspace(-0.5, 0.5, count).requires_grad_()
    loss = cosent(cosines, torch.ones(count), 0.05)
    assert loss.item() == 0
    (gradient,) = torch.autograd.grad(loss, cosines)
    assert gradient.tolist() == [0.0] * count


def test_no_pairs_have_no_loss() -> None:
    assert cosent(torch.zeros(0), torch.zeros(0), 0.05).item() == 0


def test_the_temperature_of_cosent_has_a_gradient() -> None:
    temperature = torch.tensor(0.1, requires_grad=True)
    cosent(torch.tensor([0.1, 0.4]), torch.tensor([1.0, 0.0]), temperature).backward()
    assert temperature.grad is not None
    assert temperature.grad.item() < 0


def test_autocast_does_not_lower_the_precision_of_cosines() -> None:
    anchors, positives, _ = pairs(8, 1)
    outside = pair_cosines(anchors, positives)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(pair_cosines(anchors, positives), outside)


@pytest.mark.parametrize(
    ("cosines", "scores", "share"),
    [
        ([0.1, 0.2, 0.3], [1, 2, 3], 1.0),
        ([0.3, 0.2, 0.1], [1, 2, 3], 0.0),
        ([0.1, 0.3, 0.2], [1, 2, 3], 2 / 3),
        ([0.2, 0.2], [1, 2], 0.0),
        ([0.2, 0.3], [1, 1], 1.0),
    ],
)
def test_the_share_of_ordered_comparisons(
    cosines: list[float], scores: list[float], share: float
) -> None:
    found = ordered_share(torch.tensor(cosines), torch.tensor(scores))
    assert found.item() == pytest.approx(share)


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(-3, 3)), min_size=2, max_size=20).filter(
        lambda rows: all(len(set(column)) > 1 for column in zip(*rows, strict=True))
    )
)
def test_spearman_is_that_of_scipy(rows: list[tuple[int, int]]) -> None:
    one, two = zip(*rows, strict=True)
    found = spearman(torch.tensor(one, dtype=torch.float), torch.tensor(two, dtype=torch.float))
    assert found == pytest.approx(spearmanr(one, two).statistic, abs=1e-12)


def test_spearman_of_a_constant_is_zero() -> None:
    assert spearman(torch.ones(3), torch.arange(3.0)) == 0
    assert spearman(torch.zeros(0), torch.zeros(0)) == 0
