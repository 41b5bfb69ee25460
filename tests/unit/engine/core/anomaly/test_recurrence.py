"""Peaks that a run comes back from again and again are told apart from one that is worse."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest

from fttui.engine.core.anomaly import INFO, INSTABILITY, Alert, Detector
from fttui.engine.core.anomaly.tail import PEAK_RECORDS, Recurrence

USUAL = 5e-4 / 3
"""The probability of a false alarm of one test at the usual rate."""


def after(peaks: int, every: int, size: float = 1.0) -> Recurrence:
    found = Recurrence()
    for _ in range(peaks):
        for _ in range(every - 1):
            found.push(0.0)
        found.push(size)
    return found


@pytest.mark.parametrize("peaks", [0, 1])
def test_one_peak_may_be_an_event_and_recurs_at_no_rate(peaks: int) -> None:
    found = after(peaks, 100)
    assert not found.recurs(0.0)
    assert found.largest_usual(USUAL) == 0.0


def test_frequent_peaks_recur_and_rare_ones_do_not() -> None:
    assert after(4, 100).recurs(USUAL)
    assert not after(4, 10_000).recurs(USUAL)
    assert after(4, 10_000).largest_usual(USUAL) == 0.0


def test_the_rate_is_certain_only_with_several_peaks() -> None:
    """The lower limit of the rate stays below the mean rate, and comes closer to it."""
    for every in (50, 500):
        shares = [after(count, every)._rate() * every for count in (2, 5, 20, 80)]
        assert shares == sorted(shares)
        assert shares[0] < 0.2
        assert 0.8 < shares[-1] < 1.0


def test_the_usual_size_tends_to_the_quantile_of_an_exponential_tail() -> None:
    """The mean size is 1 throughout, and limits go with it."""
    exact = math.log(0.01 / USUAL)
    assert after(4000, 100).largest_usual(USUAL) == pytest.approx(exact, rel=0.02)
    assert after(6, 100, size=3.0).largest_usual(USUAL) == pytest.approx(
        3 * after(6, 100).largest_usual(USUAL)
    )


def test_records_of_one_excursion_are_one_peak_of_its_largest_size() -> None:
    found = Recurrence()
    for size in (1.0, 3.0, 0.0, 2.0, *[0.0] * (PEAK_RECORDS - 1)):
        found.push(size)
    assert (found.peaks, found.total, found.begins) == (1, 3.0, False)
    found.push(0.0)
    assert found.begins
    found.push(0.5)
    assert (found.peaks, found.total, found.newest) == (2, 3.5, 0.5)


def spiky(peaks: dict[int, float], count: int, seed: int = 0, every: int = 1) -> list[Alert]:
    """The alerts of a run with peaks, by their records, of this ratio to the usual loss."""
    rng, detector = random.Random(seed), Detector()
    found = []
    for i in range(count):
        loss = 2.0 * peaks.get(i, 1.0) * math.exp(rng.gauss(0, 0.02))
        found += detector.update({"step": every * (i + 1), "loss": loss, "lr": 1e-4})
    return found


PEAKS = {at: 1.8 + 0.1 * (at // 60 % 3) for at in range(60, 1500, 60)}


def alarms(found: list[Alert]) -> list[int]:
    return [alert.step for alert in found if alert.kind in INSTABILITY]


@pytest.mark.parametrize("seed", range(3))
def test_a_run_that_spikes_again_and_again_has_few_alarms_and_is_called_unstable(seed: int) -> None:
    found = spiky(PEAKS, 1500, seed)
    assert 1 <= len(alarms(found)) <= 5
    repeats = [alert for alert in found if alert.kind == "unstable"]
    again = [alert.again for alert in repeats if alert.again is not None]
    assert len(again) == len(repeats) >= 5
    assert all(b.peaks >= 1.25 * a.peaks for a, b in pairwise(again))
    last = again[-1]
    assert {(a.severity, a.threatens) for a in repeats} == {(INFO, False)}
    assert last.kind == "spike"
    assert last.peaks == [*PEAKS].index(repeats[-1].step - 1) + 1
    assert len(PEAKS) < 1.25 * last.peaks + 1
    assert last.every == pytest.approx(60, rel=0.1)
    assert f"peak {last.peaks} of this run, one in about " in repeats[-1].headline


def test_the_distance_is_in_steps_whatever_the_interval_of_the_log() -> None:
    repeats = [a for a in spiky(PEAKS, 1500, every=5) if a.again is not None]
    assert repeats[-1].again is not None
    assert repeats[-1].again.every == pytest.approx(300, rel=0.1)


def test_a_taller_peak_a_divergence_and_a_value_that_is_not_finite_still_alarm() -> None:
    assert 1501 in alarms(spiky(PEAKS | {1500: 40.0}, 1520))
    up = PEAKS | dict.fromkeys(range(1500, 1540), 1.9)
    assert any(step > 1500 for step in alarms(spiky(up, 1540)))
    assert 1501 in alarms(spiky(PEAKS | {1500: math.nan}, 1510))


def test_rare_peaks_remain_alarms_of_their_own() -> None:
    rare = {at: 2.0 + 0.6 * (at // 2000) for at in range(1500, 8000, 2000)}
    assert alarms(spiky(rare, 8000)) == [at + 1 for at in rare]
