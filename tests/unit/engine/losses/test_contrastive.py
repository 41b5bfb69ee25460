from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fttui.engine.losses.contrastive import (
    Reverse,
    info_nce,
    pairwise_logistic,
    simctg,
)
from fttui.engine.losses.masks import Exclusions, Texts, exclusion_mask
from fttui.engine.losses.temperature import Temperature

from . import oracle

EYE = torch.eye(4, dtype=torch.float64)


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def loss(anchors, candidates, positive, temperature, mask=None, symmetric=False) -> float:
    index = torch.tensor(positive)
    return info_nce(anchors, candidates, index, mask, temperature, symmetric).loss_sum.item()


@given(seed=st.integers(0, 2**16), temperature=st.sampled_from([0.01, 0.05, 0.3, 1.0]))
def test_info_nce_agrees_with_the_oracle(seed: int, temperature: float) -> None:
    anchors, candidates = random(3, 5, seed=seed), random(6, 5, seed=seed + 1)
    mask = random(3, 6, seed=seed + 2) > 0.5
    excluded = {(i, j) for i in range(3) for j in range(6) if mask[i, j]}
    expected = oracle.info_nce_sum(
        anchors.tolist(), candidates.tolist(), [0, 2, 4], temperature, excluded
    )
    assert loss(anchors, candidates, [0, 2, 4], temperature, mask) == pytest.approx(
        expected, abs=1e-11
    )


def test_fp32_stays_close_to_the_oracle_where_all_vectors_nearly_agree() -> None:
    anchors, candidates = random(32, 64, seed=1) + 3, random(32, 64, seed=2) + 3
    expected = oracle.info_nce_sum(anchors.tolist(), candidates.tolist(), list(range(32)), 0.05)
    got = loss(anchors.float(), candidates.float(), list(range(32)), 0.05)
    assert got / 32 == pytest.approx(expected / 32, abs=1e-5)


def test_autocast_does_not_lower_the_precision_of_similarities() -> None:
    anchors = random(32, 64, seed=1, dtype=torch.float32) + 3
    candidates = random(32, 64, seed=2, dtype=torch.float32) + 3
    outside = loss(anchors, candidates, list(range(32)), 0.05)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert loss(anchors, candidates, list(range(32)), 0.05) == outside


@pytest.mark.parametrize("temperature", [1.0, 0.5, 0.05])
def test_two_orthonormal_pairs(temperature: float) -> None:
    got = loss(EYE[:2], EYE[:2], [0, 1], temperature) / 2
    assert got == pytest.approx(math.log1p(math.exp(-1 / temperature)), abs=1e-14)


def test_equal_vectors_give_the_log_of_their_number() -> None:
    same = EYE[[0, 0, 0, 0]]
    assert loss(same, same, [0, 1, 2, 3], 0.02) / 4 == pytest.approx(math.log(4))


def test_one_hard_negative_is_the_softplus_of_the_difference() -> None:
    anchor = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    candidates = torch.tensor([[0.6, 0.8], [0.8, 0.6]], dtype=torch.float64)
    assert loss(anchor, candidates, [0], 0.1) == pytest.approx(2.1269280110, abs=1e-9)


def test_an_antipodal_positive_does_not_overflow() -> None:
    candidates = torch.stack((-EYE[0], EYE[0])).float()
    assert loss(EYE[:1].float(), candidates, [0], 0.01) == pytest.approx(200.0)


def test_a_positive_without_negatives_has_no_loss_and_no_gradient() -> None:
    anchor = EYE[:1].clone().requires_grad_()
    mask = torch.tensor([[False, True]])
    result = info_nce(anchor, EYE[1:3], torch.tensor([0]), mask, 0.05)
    result.loss_sum.backward()
    assert result.loss_sum.item() == 0.0
    assert anchor.grad is not None
    assert anchor.grad.abs().max().item() == 0.0
    assert result.mean("neg_cos") == 0.0
    assert result.mean("candidates") == 1.0
    assert result.mean("masked_share") == 1.0


def test_an_excluded_duplicate_does_not_count() -> None:
    anchors, candidates = EYE[[0, 0]], EYE[[0, 0, 1]]
    mask = torch.tensor([[False, True, False], [True, False, False]])
    kept_out = loss(anchors, candidates, [0, 1], 0.5, mask) / 2
    counted = loss(anchors, candidates, [0, 1], 0.5) / 2
    assert kept_out == pytest.approx(math.log1p(math.exp(-2)))
    assert counted == pytest.approx(math.log(2 + math.exp(-2)))


def test_a_mask_never_hides_the_positive() -> None:
    everything = torch.ones(2, 2, dtype=torch.bool)
    assert loss(EYE[:2], EYE[:2], [0, 1], 0.05, everything) == 0.0


def test_the_loss_ignores_lengths_and_order() -> None:
    anchors, candidates = random(3, 5), random(6, 5, seed=1)
    base = loss(anchors, candidates, [0, 2, 4], 0.07)
    assert loss(7 * anchors, 0.01 * candidates, [0, 2, 4], 0.07) == pytest.approx(base, abs=1e-12)
    assert loss(anchors.flip(0), candidates.flip(0), [1, 3, 5], 0.07) == pytest.approx(base)


def test_gradients_are_right_and_tangent_to_the_sphere() -> None:
    anchors = random(3, 5).requires_grad_()
    candidates = random(6, 5, seed=1).requires_grad_()
    positive = torch.tensor([0, 2, 4])

    def both_ways(a: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return info_nce(a, c, positive, None, 0.2, symmetric=True).loss_sum

    assert torch.autograd.gradcheck(both_ways, (anchors, candidates))
    both_ways(anchors, candidates).backward()
    for leaf in (anchors, candidates):
        assert leaf.grad is not None
        assert (leaf.grad * leaf).sum(dim=1).abs().max().item() < 1e-12


def test_symmetric_is_the_mean_of_both_directions() -> None:
    anchors, candidates, positive = random(3, 5), random(6, 5, seed=1), [0, 2, 4]
    there = oracle.info_nce_sum(anchors.tolist(), candidates.tolist(), positive, 0.1)
    back = oracle.info_nce_sum(candidates[positive].tolist(), anchors.tolist(), [0, 1, 2], 0.1)
    both = loss(anchors, candidates, positive, 0.1, symmetric=True)
    assert both == pytest.approx((there + back) / 2, abs=1e-12)


def test_symmetric_parts_over_ranks_add_up_to_the_whole() -> None:
    anchors, candidates = random(4, 5), random(4, 5, seed=1)
    mask = random(4, 4, seed=5) > 1
    whole = info_nce(anchors, candidates, torch.arange(4), mask, 0.1, symmetric=True)
    parts = 0.0
    for rows in (slice(0, 2), slice(2, 4)):
        index = torch.arange(4)[rows]
        reverse = Reverse(anchors, index, mask.T[rows])
        part = info_nce(anchors[rows], candidates, index, mask[rows], 0.1, reverse)
        parts += part.loss_sum.item()
    assert parts == pytest.approx(whole.loss_sum.item(), abs=1e-12)


def test_measures_of_a_batch() -> None:
    anchors = EYE[:2]
    candidates = torch.stack((EYE[0], EYE[0], EYE[2]))
    mask = torch.tensor([[False, False, True], [False, False, False]])
    result = info_nce(anchors, candidates, torch.tensor([0, 2]), mask, 0.1)
    assert result.count == 2
    assert result.mean("pos_cos") == pytest.approx(0.5)
    assert result.mean("neg_cos") == pytest.approx(0.5)
    assert result.mean("masked_share") == pytest.approx(0.25)
    assert result.mean("candidates") == pytest.approx(2.5)
    assert result.mean("top1") == 0.0, "a tie is no hit"
    hit = info_nce(anchors, EYE[:2], torch.tensor([0, 1]), None, 0.1)
    assert hit.mean("top1") == 1.0


@given(seed=st.integers(0, 2**16), cut=st.integers(0, 5))
def test_results_of_any_split_add_up(seed: int, cut: int) -> None:
    anchors, candidates = random(5, 4, seed=seed), random(7, 4, seed=seed + 1)
    positive, mask = torch.arange(5), random(5, 7, seed=seed + 2) > 0.5
    whole = info_nce(anchors, candidates, positive, mask, 0.1)
    parts = [
        info_nce(anchors[rows], candidates, positive[rows], mask[rows], 0.1)
        for rows in (slice(0, cut), slice(cut, 5))
    ]
    both = parts[0] + parts[1]
    assert both.count == 5
    assert both.loss_sum.item() == pytest.approx(whole.loss_sum.item(), abs=1e-11)
    assert {n: v.item() for n, v in both.sums.items()} == pytest.approx(
        {n: v.item() for n, v in whole.sums.items()}, abs=1e-11
    )


@given(seed=st.integers(0, 2**16), temperature=st.sampled_from([0.05, 1.0]))
def test_pairwise_logistic_agrees_with_the_oracle(seed: int, temperature: float) -> None:
    anchors, candidates = random(3, 5, seed=seed), random(6, 5, seed=seed + 1)
    mask = random(3, 6, seed=seed + 2) > 0.5
    excluded = {(i, j) for i in range(3) for j in range(6) if mask[i, j]}
    expected = oracle.pairwise_sum(
        anchors.tolist(), candidates.tolist(), [0, 2, 4], temperature, excluded
    )
    got = pairwise_logistic(anchors, candidates, torch.tensor([0, 2, 4]), mask, temperature)
    assert got.loss_sum.item() == pytest.approx(expected, abs=1e-11)


def test_pairwise_and_info_nce_agree_on_one_negative() -> None:
    anchors, candidates, own = random(1, 5), random(2, 5, seed=1), torch.tensor([1])
    one = pairwise_logistic(anchors, candidates, own, None, 0.1)
    other = info_nce(anchors, candidates, own, None, 0.1)
    assert one.loss_sum.item() == pytest.approx(other.loss_sum.item(), abs=1e-13)


def test_the_margin_excludes_what_is_nearer_than_the_positive() -> None:
    anchor = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    candidates = torch.tensor([[0.6, 0.8], [0.8, 0.6], [1.0, 0.0]], dtype=torch.float64)
    for margin, left in ((None, [0, 1, 2]), (0.3, [0, 1]), (0.1, [0]), (0.0, [0])):
        result = info_nce(anchor, candidates, torch.tensor([0]), None, 0.5, margin=margin)
        alone = info_nce(anchor, candidates[left], torch.tensor([0]), None, 0.5)
        assert result.loss_sum.item() == pytest.approx(alone.loss_sum.item(), abs=1e-13)


def test_a_learned_temperature_gets_the_closed_gradient() -> None:
    anchors, candidates, own = random(3, 5), random(6, 5, seed=1), torch.tensor([0, 2, 4])
    temperature = Temperature(0.07, learned=True).double()
    assert temperature.log_scale is not None
    info_nce(anchors, candidates, own, None, temperature.now()).loss_sum.backward()
    expected = oracle.log_scale_gradient(anchors.tolist(), candidates.tolist(), [0, 2, 4], 0.07)
    assert temperature.log_scale.grad is not None
    assert temperature.log_scale.grad.item() == pytest.approx(expected, rel=1e-5)


def test_a_learned_temperature_stays_in_its_bounds() -> None:
    temperature = Temperature(0.05, learned=True, bounds=(0.02, 0.5))
    assert temperature.log_scale is not None
    for pushed, kept in ((100.0, 0.02), (-100.0, 0.5), (3.0, math.exp(-3.0))):
        with torch.no_grad():
            temperature.log_scale.fill_(pushed)
        temperature.clamp()
        assert torch.as_tensor(temperature.now()).item() == pytest.approx(kept, rel=1e-6)
    assert Temperature(0.05).now() == 0.05
    assert list(Temperature(0.05).parameters()) == []


def test_no_anchor_at_all_is_a_zero_with_a_graph() -> None:
    anchors = torch.zeros(0, 4, requires_grad=True)
    candidates = EYE.float().requires_grad_()
    result = info_nce(anchors, candidates, torch.zeros(0, dtype=torch.int64), None, 0.05)
    result.loss_sum.backward()
    assert (result.loss_sum.item(), result.count) == (0.0, 0)
    assert candidates.grad is not None


def texts(rows: list[tuple[int, int, int, int]]) -> Texts:
    """From (hash, label, pair, hard)."""
    return Texts(*torch.tensor(rows, dtype=torch.int64).unbind(1))


ANCHORS = texts([(30, 5, 0, 0), (40, -1, 1, 0)])
CANDIDATES = texts(
    [(10, 5, 0, 0), (20, -1, 1, 0), (10, -1, 0, 1), (30, -1, 1, 1), (50, 5, 1, 1), (60, -1, 0, 1)]
)
NOTHING = Exclusions(duplicates=False, labels=False)


@pytest.mark.parametrize(
    ("rules", "first", "second"),
    [
        (NOTHING, [], []),
        (Exclusions(duplicates=True, labels=False), [2, 3], []),
        (Exclusions(duplicates=False, labels=True), [4], []),
        (Exclusions(duplicates=False, labels=False, own_hard_only=True), [3, 4], [2, 5]),
        (Exclusions(duplicates=False, labels=False, in_batch=False), [1, 3, 4], [0, 2, 5]),
    ],
)
def test_what_is_excluded(rules: Exclusions, first: list[int], second: list[int]) -> None:
    mask = exclusion_mask(ANCHORS, CANDIDATES[:2], CANDIDATES, rules)
    assert [row.nonzero().flatten().tolist() for row in mask] == [first, second]


def token_level(hidden: torch.Tensor, mask: torch.Tensor, margin: float) -> torch.Tensor:
    total, pairs = simctg(hidden, mask, margin)
    return total / pairs.clamp_min(1)


@given(seed=st.integers(0, 2**16), margin=st.sampled_from([0.0, 0.5, 1.0]))
def test_simctg_agrees_with_the_oracle(seed: int, margin: float) -> None:
    hidden = random(3, 4, 5, seed=seed)
    mask = (random(3, 4, seed=seed + 1) > -0.5).long()
    expected = oracle.simctg(hidden.tolist(), mask.tolist(), margin)
    assert token_level(hidden, mask, margin).item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("tokens", "mask", "expected"),
    [
        (EYE[[0, 0, 0]], [1, 1, 1], 0.5),
        (EYE[[0, 1, 2]], [1, 1, 1], 0.0),
        (EYE[[0, 1, 2]], [1, 0, 0], 0.0),
        (torch.tensor([[1.0, 0.0], [0.8, 0.6]]), [1, 1], 0.3),
    ],
)
def test_simctg_closed_forms(tokens: torch.Tensor, mask: list[int], expected: float) -> None:
    got = token_level(tokens[None], torch.tensor([mask]), 0.5).item()
    assert got == pytest.approx(expected)


def test_simctg_does_not_care_about_padding() -> None:
    tokens, mask = random(1, 4, 5), torch.ones(1, 4)
    noise, holes = random(1, 3, 5, seed=3), torch.zeros(1, 3)
    alone = token_level(tokens, mask, 0.8).item()
    for order in ((tokens, noise), (noise, tokens)):
        sides = {id(tokens): mask, id(noise): holes}
        padded = torch.cat(order, dim=1)
        padded_mask = torch.cat([sides[id(part)] for part in order], dim=1)
        assert token_level(padded, padded_mask, 0.8).item() == pytest.approx(alone, abs=1e-14)


def test_simctg_gradient() -> None:
    hidden = random(2, 4, 5).requires_grad_()
    mask = torch.tensor([[1, 1, 1, 0], [0, 1, 1, 1]])
    assert torch.autograd.gradcheck(lambda h: token_level(h, mask, 0.9), (hidden,))
