from __future__ import annotations

import json
import math
import random
from collections.abc import Callable

import msgspec
import pytest

from fttui.engine.core.anomaly import ALARM, INFO, Detector

from .series import Record, kinds, run, series


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    ("name", "level", "noise"),
    [
        ("flat", lambda i: 2.0, 0.03),
        ("noisy", lambda i: 2.0, 0.3),
        ("falling", lambda i: 0.5 + 2.5 * math.exp(-i / 80), 0.04),
        ("epochs", lambda i: 1.5 * 0.7 ** (i // 150), 0.05),
        ("memorised", lambda i: 0.003, 0.5),
    ],
)
def test_an_ordinary_run_is_left_alone(name: str, level: object, noise: float, seed: int) -> None:
    assert callable(level)
    alerts = run(series(600, level=level, noise=noise, seed=seed))
    assert {(a.kind, a.severity) for a in alerts} <= {("plateau", INFO)}


def test_a_signed_loss_near_zero_is_left_alone() -> None:
    rng = random.Random(3)
    assert run([{"step": i, "loss": rng.gauss(0, 0.02)} for i in range(500)]) == []


def judged(seed: int, margin: Callable[[int], float], *, hinge: bool = False) -> list[Record]:
    """Preferences that are told apart ever better: steps of 16 pairs, from chance to zero."""
    rng = random.Random(seed)
    records = []
    for step in range(1, 401):
        margins = [rng.gauss(margin(step), 1.0) for _ in range(16)]
        costs = [max(0, 1 - m) if hinge else math.log1p(math.exp(-m)) for m in margins]
        slopes = [float(m < 1) if hinge else 1 / (1 + math.exp(m)) for m in margins]
        norm = math.exp(rng.gauss(0, 0.2)) * sum(slopes) / 16
        records.append({"step": step, "loss": sum(costs) / 16, "grad_norm": norm, "lr": 1e-5})
    return records


@pytest.mark.parametrize("hinge", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_a_loss_that_goes_from_chance_to_zero_is_left_alone(seed: int, hinge: bool) -> None:
    records = judged(seed, lambda step: step / 80, hinge=hinge)
    alerts = run(records, Detector(falls_to_zero=True))
    assert {(a.kind, a.severity) for a in alerts} <= {("plateau", INFO)}


@pytest.mark.parametrize("seed", range(3))
def test_judged_completions_that_are_told_apart_no_longer_are_noticed(seed: int) -> None:
    spike = judged(seed, lambda step: -3 if step == 350 else min(step, 300) / 100)
    (alarm,) = [
        alert
        for alert in run(spike, Detector(falls_to_zero=True))
        if (alert.kind, alert.severity) == ("spike", ALARM)
    ]
    assert alarm.step == 350
    assert alarm.baseline == pytest.approx(0.07, abs=0.03)
    lost = judged(seed, lambda step: min(step, 300) / 100 - max(0, step - 300) * 0.1)
    first = next(a for a in run(lost, Detector(falls_to_zero=True)) if a.severity == ALARM)
    assert first.kind in ("spike", "divergence")
    assert 300 < first.step <= 325


def test_a_spike_is_one_alarm_that_says_how_much() -> None:
    records = series(200)
    records[150]["loss"] = 6.5
    records[151]["loss"] = 5.0
    (alert,) = run(records)
    assert (alert.kind, alert.severity, alert.step) == ("spike", ALARM, 151)
    assert alert.value == 6.5
    assert alert.baseline == pytest.approx(1.0, abs=0.05)
    assert alert.ratio == pytest.approx(6.5, rel=0.05)
    assert alert.z is not None
    assert alert.z > 30
    assert alert.headline.startswith("loss 6.5 is ×6.")
    assert f"(z {alert.z:.0f})" in alert.headline


def test_a_drop_is_no_alarm_and_the_new_level_is_learned() -> None:
    records = series(300, level=lambda i: 3.0 if i < 150 else 1.0)
    records[250]["loss"] = 2.0
    (alert,) = [a for a in run(records) if a.severity == ALARM]
    assert alert.step == 251
    assert alert.baseline == pytest.approx(1.0, abs=0.05)


def test_the_usual_outlier_of_a_heavy_tailed_run_stops_alarming() -> None:
    records = series(900)
    for at in range(100, 900, 40):
        records[at]["loss"] = 1.6
    found = run(records)
    alarms = [alert for alert in found if alert.severity == ALARM]
    assert 1 <= len(alarms) <= 4
    assert alarms[-1].step < 300
    assert {alert.kind for alert in found if alert not in alarms} == {"unstable"}


def test_one_outlier_does_not_hide_the_next() -> None:
    records = series(200)
    records[100]["loss"] = records[130]["loss"] = 1.8
    assert [alert.step for alert in run(records)] == [101, 131]


def test_a_loss_that_is_no_number_alarms_at_once_and_only_once_in_a_row() -> None:
    for bad in (math.nan, math.inf):
        records = series(60)
        for record in records[3:9]:
            record["loss"] = bad
        (alert,) = run(records)
        assert (alert.kind, alert.severity, alert.step) == ("nonfinite", ALARM, 4)


def test_a_single_bad_gradient_is_an_alarm_and_more_of_them_no_further_one() -> None:
    records = series(100)
    records[60]["grad_norm"] = math.inf
    assert [(a.kind, a.severity, a.step) for a in run(records)] == [("nonfinite", ALARM, 61)]
    records[63]["grad_norm"] = math.nan
    assert kinds(run(records)) == ["nonfinite"]
    records[90]["grad_norm"] = math.nan
    assert [alert.step for alert in run(records)] == [61, 91]


def test_a_loss_scaler_may_look_for_its_scale_but_not_for_ever() -> None:
    records = series(60)
    for record in records:
        record["loss_scale"] = 1024.0
    for record in records[:4]:
        record["grad_norm"] = math.inf
    assert [(a.kind, a.severity) for a in run(records)] == [("nonfinite", INFO)]
    for record in records[:20]:
        record["grad_norm"] = math.inf
    assert [(a.severity, a.step) for a in run(records)] == [(INFO, 1), (ALARM, 8)]


@pytest.mark.parametrize("norm", [0.5, math.nan])
def test_a_loss_of_exactly_zero_is_a_collapse(norm: float) -> None:
    records = series(100)
    for record in records[70:]:
        record.update(loss=0.0, grad_norm=norm)
    assert kinds(run(records))[0] == "nonfinite"
    assert run(records)[0].step <= 73


def test_a_gradient_explosion_is_seen_while_the_loss_is_normal() -> None:
    records = series(150)
    records[100]["grad_norm"] = 12.0
    (alert,) = run(records)
    assert (alert.kind, alert.severity, alert.step) == ("grad_explosion", ALARM, 101)
    assert "grad norm 12 is ×2" in alert.headline


def test_a_slow_ramp_is_a_divergence() -> None:
    records = series(300, level=lambda i: 1.0 + max(0, i - 150) * 0.01)
    alarms = run(records)
    assert kinds(alarms)[0] == "divergence"
    assert alarms[0].step < 190
    assert alarms[0].baseline == pytest.approx(1.0, abs=0.05)


def test_a_run_that_blows_up_in_its_first_records_is_seen() -> None:
    losses = [9.2, 4.7, 6.3, 67.0, 44.0, 100.0, 96.0]
    alarms = run([{"step": i, "loss": loss} for i, loss in enumerate(losses)])
    assert kinds(alarms) == ["divergence"]
    assert alarms[0].step == 4


@pytest.mark.parametrize("quantity", ["grad_norm", "loss"])
def test_nothing_learned_at_all_is_dead(quantity: str) -> None:
    records = series(60, level=lambda i: 0.02 if quantity == "loss" else 1.0)
    for record in records[40:]:
        record[quantity] = 0.0
    alarms = [alert for alert in run(records) if alert.kind == "dead"]
    assert [alert.step for alert in alarms] == [45]


def test_a_loss_of_zero_with_a_gradient_is_not_dead_where_losses_are_signed() -> None:
    rng = random.Random(3)  # on-policy: the first of two updates has a loss of exactly 0
    records = [
        {"step": i, "loss": rng.gauss(0, 1e-4) * (i % 2) * (i % 40 > 8), "grad_norm": 0.1}
        for i in range(400)
    ]
    assert run(records) == []
    for record in records[300:]:
        record.update(loss=0.0, grad_norm=0.0)
    assert (run(records)[0].kind, run(records)[0].step) == ("dead", 304)


def test_no_gradient_is_no_news_for_as_long_as_the_run_has_come_back_from() -> None:
    records = series(400)
    for start in range(100, 400, 50):
        for record in records[start : start + 7]:
            record["grad_norm"] = 0.0
    assert [a.step for a in run(records) if a.kind == "dead"] == [105]


def test_what_dies_down_is_no_second_alarm() -> None:
    records = series(200)
    for i, record in enumerate(records[100:140]):  # one jump, and 40 records to come back
        record["loss"] += 30 * 0.85**i
        record["grad_norm"] *= 1 + 60 * 0.85**i
    alarms = [a for a in run(records) if a.kind in ("spike", "grad_explosion")]
    assert {a.step for a in alarms} == {101}


def test_a_wild_start_does_not_hide_what_comes_later() -> None:
    records = series(200)
    for record, loss in zip(records, [1e-6, 1e-4, 1e-2, 0.1, 0.3, 0.5, 0.8], strict=False):
        record["loss"] = loss
    records[150]["loss"] *= 2.5
    assert ("spike", 151) in [(a.kind, a.step) for a in run(records)]


def test_one_step_of_a_rounded_loss_is_not_an_outlier() -> None:
    records = series(300, noise=0.0)
    for i, record in enumerate(records):
        record["loss"] = 0.001 if i % 9 == 0 or i == 250 else 0.0009
    assert [a for a in run(records) if a.kind == "spike"] == []


def test_a_slow_but_sure_fall_of_a_high_loss_is_learning() -> None:
    assert run(series(120, level=lambda i: 1e6 * (1 - 1e-4 * i), noise=1e-5)) == []


def test_a_flat_high_loss_is_hinted_at_once() -> None:
    (alert,) = run(series(300, level=lambda i: 11.2, noise=0.01))
    assert (alert.kind, alert.severity) == ("plateau", INFO)
    assert run(series(300, level=lambda i: 2.1, noise=0.01)) == []


def eventful() -> list[Record]:
    records = series(260, level=lambda i: 1.0 + max(0, i - 200) * 0.02)
    records[90].update(loss=4.0, grad_norm=9.0)
    records[140]["grad_norm"] = math.nan
    records[142]["grad_norm"] = math.nan
    records[160]["loss"] = math.nan
    for i, record in enumerate(records):
        record["tok_s"] = 5000.0 if i < 180 else 2500.0
        record["mem_allocated"] = 4_000_000_000 + max(0, i - 100) * 20_000_000
        if i % 40 == 0:
            record["eval_loss"] = 1.0 + i / 1000
    return records


@pytest.mark.parametrize("at", [0, 5, 25, 91, 120, 141, 161, 190, 230])
def test_a_restored_detector_has_the_identical_future(at: int) -> None:
    records = eventful()
    whole = Detector()
    run(records[:at], whole)
    whole.take_verdicts()
    saved = msgspec.json.decode(msgspec.json.encode(whole.state()))
    expected = run(records[at:], whole), whole.take_verdicts()
    for _ in range(2):
        again = Detector.from_state(saved)
        assert repr((run(records[at:], again), again.take_verdicts())) == repr(expected)
        assert again.state() == whole.state()


def test_the_state_of_a_running_detector_is_a_copy() -> None:
    detector = Detector()
    run(series(50), detector)
    saved = detector.state()
    before = msgspec.json.encode(saved)
    run(series(50, seed=2), detector)
    assert msgspec.json.encode(saved) == before


def test_the_knob_moves_what_counts_as_a_spike() -> None:
    def found(sensitivity: float, loss: float) -> bool:
        records = series(200)
        records[150]["loss"] = loss
        return bool(run(records, Detector(sensitivity)))

    assert found(1.0, 1.5)
    assert not found(0.25, 1.5)
    assert not found(1.0, 1.17)
    assert found(4.0, 1.17)


def test_a_resumed_run_at_another_level_is_learned_first() -> None:
    detector = Detector()
    run(series(100), detector)
    assert run(series(100, level=lambda i: 2.5, seed=2)[50:], detector) == []


def test_a_told_change_is_learned_first_but_nan_still_alarms() -> None:
    detector = Detector()
    run(series(100), detector)
    detector.relearn()
    after = series(200, level=lambda i: 2.5, seed=2)[100:]
    after[3]["loss"] = math.nan
    assert kinds(run(after, detector)) == ["nonfinite"]


def test_missing_fields_and_duplicate_steps_are_fine() -> None:
    detector = Detector()
    assert detector.update({}) == []
    assert detector.update({"step": 5, "loss": None, "grad_norm": None}) == []
    assert run([{"step": 7, "loss": 1.0 + i % 3 * 0.01} for i in range(100)], detector) == []


def test_a_loss_is_judged_alike_in_any_unit() -> None:
    def found(factor: float) -> list[tuple[str, int]]:
        records = series(400, level=lambda i: 1.0 if i < 300 else 1.6)
        records[150]["loss"] = 2.0
        for record in records:
            record["loss"] *= factor
        return [(a.kind, a.step) for a in run(records) if a.severity == ALARM]

    assert [kind for kind, _ in found(1.0)][:2] == ["spike", "spike"]
    assert found(1e-4) == found(1.0) == found(1e3)


def test_a_run_that_turns_while_falling_is_seen_by_its_best() -> None:
    falling = series(125, level=lambda i: 3.0 * 0.99 ** min(i, 70) * 1.008 ** max(0, i - 70))
    assert "divergence" in kinds(run(falling))


def test_nearly_three_times_the_level_is_told_in_a_very_noisy_run() -> None:
    records = series(300, noise=0.2)
    records[250]["loss"] = 3.2
    assert [(a.kind, a.step) for a in run(records)] == [("spike", 251)]


def test_a_run_that_stops_improving_is_hinted_at_and_one_that_goes_on_is_not() -> None:
    stops = series(300, level=lambda i: 3.0 * 0.995 ** min(i, 150))
    (first, *_) = run(stops)
    assert (first.kind, first.severity) == ("plateau", INFO)
    assert 160 <= first.step <= 215
    assert run(series(300, level=lambda i: 3.0 * 0.995**i)) == []


def test_the_state_holds_only_finite_numbers_whatever_the_losses_are() -> None:
    detector = Detector()
    for step, loss in enumerate((2.0, math.nan, 0.0, math.inf)):
        detector.update({"step": step, "loss": loss, "grad_norm": loss})
        json.dumps(detector.state(), allow_nan=False)
