"""However a step is split into micro-batches, its gradient is that of the step in one piece."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from fttui.engine.config.schema import ContrastiveConfig
from fttui.engine.train.objectives.contrastive import PairObjective, PairTexts, join, pair_texts
from fttui.engine.train.objectives.gradcache import (
    Randomness,
    StepCache,
    cache_step,
    first_pass,
    graphs_kept,
)

CPU = torch.device("cpu")
PAIRS = 6
HARD = (1, 0, 2, 1, 0, 1)
"""Hard negatives of each pair."""
WEIGHTS = torch.tensor([1.0, 0.5, 2.0, 0.0, 3.0, 1.0], dtype=torch.float64)


def encoder() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 4)).double()


def batch_of(pairs: range) -> dict[str, Any]:
    """Some of the pairs, as the collator lays them out; pairs 0 and 3 share a positive text."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(PAIRS, 4, 5, generator=generator, dtype=torch.float64)
    owners = [n for n, pair in enumerate(pairs) for _ in range(HARD[pair])]
    rows = [(pair, 0) for pair in pairs] + [(pair, 1) for pair in pairs]
    rows += [(pair, 2 + k) for pair in pairs for k in range(HARD[pair])]
    hashes = [7 if kind == 1 and pair in (0, 3) else 100 * pair + kind for pair, kind in rows]
    return {
        "inputs": torch.stack([inputs[pair, kind] for pair, kind in rows]),
        "pair_count": len(pairs),
        "negative_owner": torch.tensor(owners, dtype=torch.int64),
        "text_hash": torch.tensor(hashes),
        "label": torch.tensor([4 if pair in (1, 2) else -1 for pair in pairs]),
        "record_weights": WEIGHTS[list(pairs)],
    }


def trained(model: nn.Module, objective: PairObjective) -> list[nn.Parameter]:
    return [*model.parameters(), *objective.temperature.parameters()]


def cached_gradient(
    config: ContrastiveConfig, cuts: list[int], keep: int = 1
) -> tuple[list[torch.Tensor], torch.Tensor, StepCache]:
    """The gradient, and the loss as the trainer would report it, of a step split at the cuts."""
    model, objective = encoder(), PairObjective(config)
    objective.temperature.double()
    edges = [0, *cuts, PAIRS]
    batches = [batch_of(range(*edge)) for edge in pairwise(edges)]
    torch.manual_seed(2)

    def embed(number: int) -> tuple[torch.Tensor, PairTexts]:
        hidden = model(batches[number]["inputs"])
        return hidden, pair_texts(hidden, batches[number])

    seen = first_pass(len(batches), embed, CPU, lambda: True, keep)
    assert seen is not None
    cache = cache_step(seen, objective, scale=1 / PAIRS)
    total = torch.zeros((), dtype=torch.float64)
    before = torch.get_rng_state()
    for number in range(len(batches)):
        with cache.randomness[number].again():
            hidden, texts = embed(number)
        if number in cache.kept:
            assert torch.equal(cache.kept[number], hidden)
            texts = pair_texts(cache.kept[number], batches[number])
        share = cache.share(number, texts, objective.temperature.log_scale)
        share.backward()
        total += share.detach()
    assert torch.equal(torch.get_rng_state(), before)
    return [_grad(p) for p in trained(model, objective)], total, cache


def whole_gradient(
    config: ContrastiveConfig, cuts: list[int]
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """The same with every graph held at once; the cuts only decide the dropout masks."""
    model, objective = encoder(), PairObjective(config)
    objective.temperature.double()
    edges = [0, *cuts, PAIRS]
    batches = [batch_of(range(*edge)) for edge in pairwise(edges)]
    torch.manual_seed(2)
    parts = [pair_texts(model(batch["inputs"]), batch) for batch in batches]
    loss = objective.compare(join(parts), range(PAIRS)).loss_sum / PAIRS
    loss.backward()
    return [_grad(p) for p in trained(model, objective)], loss.detach()


def _grad(parameter: nn.Parameter) -> torch.Tensor:
    assert parameter.grad is not None
    return parameter.grad


configs = st.builds(
    ContrastiveConfig,
    kind=st.sampled_from(["infonce", "pairwise"]),
    symmetric=st.booleans(),
    own_hard_only=st.booleans(),
    learn_temperature=st.booleans(),
    mask_margin=st.sampled_from([None, 0.1]),
    temperature=st.sampled_from([0.05, 0.5]),
)


@settings(max_examples=40, deadline=None)
@given(
    config=configs,
    cuts=st.sets(st.integers(1, PAIRS - 1)).map(sorted),
    keep=st.integers(1, PAIRS),
)
def test_the_split_of_a_step_does_not_show(
    config: ContrastiveConfig, cuts: list[int], keep: int
) -> None:
    gradients, loss, cache = cached_gradient(config, cuts, keep)
    assert len(cache.kept) == min(keep, len(cuts) + 1)
    expected, whole = whole_gradient(config, cuts)
    for found, wanted in zip(gradients, expected, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-12, rtol=1e-9)
    assert loss.item() == pytest.approx(whole.item(), abs=1e-12)
    assert cache.result.count == PAIRS


def test_a_weighted_step_has_the_sum_that_plain_pytorch_has() -> None:
    config = ContrastiveConfig(temperature=0.5, mask_duplicates=False, mask_labels=False)
    batch = batch_of(range(PAIRS))
    vectors = batch["inputs"].flatten(1)
    result = PairObjective(config).compare(pair_texts(vectors, batch), range(PAIRS))
    unit = F.normalize(vectors, dim=-1)
    cosines = unit[:PAIRS] @ unit[PAIRS:].T / 0.5
    each = F.cross_entropy(cosines, torch.arange(PAIRS), reduction="none")
    assert result.loss_sum.item() == pytest.approx((each * WEIGHTS).sum().item(), rel=1e-9)
    assert result.count == PAIRS, "measurements count every pair once"


def test_blocks_of_anchors_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    config = ContrastiveConfig(kind="infonce", symmetric=True, learn_temperature=True)
    expected, _ = whole_gradient(config, [2])
    monkeypatch.setattr("fttui.engine.train.objectives.contrastive.COSINES_AT_ONCE", 20)
    gradients, _, _ = cached_gradient(config, [2])
    for found, wanted in zip(gradients, expected, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-12, rtol=1e-9)


def test_a_dropped_step_embeds_nothing_more() -> None:
    asked: list[int] = []

    def embed(number: int) -> tuple[torch.Tensor, PairTexts]:
        asked.append(number)
        batch = batch_of(range(1))
        return batch["inputs"], pair_texts(batch["inputs"], batch)

    answers = iter([True, True, False])
    assert first_pass(5, embed, CPU, lambda: next(answers), 1) is None
    assert asked == [0, 1]


@pytest.mark.parametrize(
    ("tokens", "at_most", "kept"),
    [([2**26], 1, 1), ([2**26, 1, 1], 3, 1), ([2**20] * 9, 9, 8), ([2**20] * 9, 3, 3)],
)
def test_graphs_are_kept_while_there_is_room(tokens: list[int], at_most: int, kept: int) -> None:
    assert graphs_kept(tokens, 16, at_most) == kept


def test_randomness_is_drawn_again_and_leaves_no_trace() -> None:
    torch.manual_seed(3)
    randomness = Randomness.of(CPU)
    first = torch.rand(4)
    state = torch.get_rng_state()
    with randomness.again():
        assert torch.equal(torch.rand(4), first)
    assert torch.equal(torch.get_rng_state(), state)
