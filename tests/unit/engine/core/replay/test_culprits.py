"""The search finds the samples that raise a step, in few tests, and says when there are none."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fttui.engine.core.replay.culprits import (
    Figures,
    Noise,
    SearchResult,
    most_tests,
    search,
)

Step = Callable[[tuple[str, ...]], Figures]
NOISE = Noise(0.02, 0.05)


def play(count: int, step: Step, noise: Noise = NOISE) -> tuple[SearchResult, list[int]]:
    """Run a search over a simulated step; return the result and the sizes of its tests."""
    names = [f"s{number}" for number in range(count)]
    running, sizes = search(names, noise), []
    present = next(running)
    while True:
        sizes.append(len(present))
        try:
            present = running.send(step(present))
        except StopIteration as end:
            return end.value, sizes


def mean_step(count: int, odd: Mapping[str, float], seed: int = 0, width: float = 0.05) -> Step:
    """A step whose loss is the mean over its samples; replaced ones are usual.

    Usual losses differ by at most `width` from 1, so that none of them is a culprit by chance.
    """
    rng = random.Random(seed)
    usual = {f"s{number}": rng.uniform(1 - width, 1 + width) for number in range(count)}
    others = {name: rng.uniform(1 - width, 1 + width) for name in usual}

    def step(present: tuple[str, ...]) -> Figures:
        here = {n: odd.get(n, usual[n]) if n in present else others[n] for n in usual}
        loss = sum(here.values()) / count
        norm = math.sqrt(sum(((v - 0.5) / count) ** 2 for v in here.values()))
        return Figures(loss, norm)

    return step


@given(st.integers(1, 128), st.integers(0, 10**6), st.data())
def test_one_culprit_takes_log2_n_tests(count: int, seed: int, data: st.DataObject) -> None:
    name = f"s{data.draw(st.integers(0, count - 1))}"
    result, sizes = play(count, mean_step(count, {name: 40.0}, seed))
    assert result.verdict == "found"
    assert [one.id for one in result.culprits] == [name]
    assert len(sizes) <= 3 + math.ceil(math.log2(max(1, count)))
    assert sizes[0] == count
    (suspect,) = result.culprits
    assert result.whole
    assert result.replaced
    share = suspect.loss_share(result.whole, result.replaced)
    alone = mean_step(count, {name: 40.0}, seed)((name,)).loss - result.replaced.loss
    assert share == pytest.approx(min(1.0, alone / (result.whole.loss - result.replaced.loss)))


@given(st.integers(8, 64), st.integers(1, 4), st.integers(0, 10**6))
def test_several_culprits_are_all_found(count: int, culprits: int, seed: int) -> None:
    names = random.Random(seed).sample([f"s{number}" for number in range(count)], culprits)
    odd = {name: 30.0 + 10 * number for number, name in enumerate(names)}
    result, sizes = play(count, mean_step(count, odd, seed))
    assert {one.id for one in result.culprits} == set(names)
    assert result.verdict == "found"
    assert len(sizes) <= most_tests(count)


@given(st.integers(1, 64), st.integers(0, 10**6))
def test_damaged_weights_are_no_samples_fault(count: int, seed: int) -> None:
    usual = mean_step(count, {}, seed, width=0.05)

    def damaged(present: tuple[str, ...]) -> Figures:
        loss, norm = usual(present)
        return Figures(loss + 20, norm * 30)

    result, sizes = play(count, damaged, Noise(0.2, 0.2))
    assert (result.verdict, result.culprits, len(sizes)) == ("spread", [], min(2, len(sizes)))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("names", [["s5"], ["s0", "s9", "s15"]])
def test_a_sample_that_is_not_finite_is_found(bad: float, names: list[str]) -> None:
    def step(present: tuple[str, ...]) -> Figures:
        return Figures(bad, bad) if set(names) & set(present) else Figures(1.0, 0.1)

    result, _ = play(16, step)
    assert [one.id for one in result.culprits] == names
    assert result.verdict == "found"
    assert result.whole
    assert result.replaced
    assert result.culprits[-1].loss_share(result.whole, result.replaced) is None


def test_a_pair_that_is_bad_only_together_is_named_as_a_group() -> None:
    def step(present: tuple[str, ...]) -> Figures:
        return Figures(9.0 if {"s1", "s6"} <= set(present) else 1.0, 0.1)

    result, _ = play(8, step)
    assert result.verdict in ("together", "found")
    named = {one.id for one in result.culprits} | set(result.group)
    assert named & {"s1", "s6"}


def test_more_culprits_than_tests_are_reported_as_unfinished() -> None:
    count = 64
    odd = {f"s{number}": 60.0 for number in range(0, 36, 4)}
    result, sizes = play(count, mean_step(count, odd))
    assert result.verdict == "unfinished"
    assert {one.id for one in result.culprits} < set(odd)
    assert result.culprits
    assert len(sizes) == most_tests(count)


def test_an_odd_norm_alone_is_enough() -> None:
    def step(present: tuple[str, ...]) -> Figures:
        return Figures(1.0, 50.0 if "s3" in present else 0.1)

    result, _ = play(8, step)
    assert [one.id for one in result.culprits] == ["s3"]


def test_noise_is_that_of_the_steps_before_and_not_of_their_outliers() -> None:
    rng = random.Random(0)
    steps = [Figures(rng.gauss(2, 0.1), math.exp(rng.gauss(0, 0.2))) for _ in range(60)]
    noise = Noise.of([*steps, Figures(90, 90), Figures(math.nan, 1)])
    assert noise.loss == pytest.approx(0.1, rel=0.4)
    assert noise.log_norm == pytest.approx(0.2, rel=0.4)
    assert Noise.of([]).loss > 0


def test_near_the_noise_a_misled_search_tries_other_halves() -> None:
    found = wrong = 0
    for seed in range(200):
        rng = random.Random(seed)

        def step(present: tuple[str, ...], rng: random.Random = rng) -> Figures:
            return Figures(1 + 0.5 * ("s11" in present) + rng.gauss(0, 0.1), 0.1)

        result, _ = play(32, step, Noise(0.1, 0.1))
        named = [one.id for one in result.culprits]
        found += named == ["s11"]
        wrong += named not in ([], ["s11"])
    assert found >= 160
    assert wrong <= 10


def test_a_batch_that_is_also_hard_as_a_whole_leaves_its_culprit_found() -> None:
    def step(present: tuple[str, ...]) -> Figures:
        return Figures(1 + 5 * ("s3" in present) + len(present) / 16, 0.1)

    result, sizes = play(16, step)
    assert (result.verdict, [one.id for one in result.culprits]) == ("found", ["s3"])
    assert len(sizes) <= most_tests(16)
