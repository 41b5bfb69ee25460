from __future__ import annotations

import math
import random
from collections.abc import Callable

import msgspec
import pytest

from fttui.engine.core.anomaly import ALARM, INFO, WATCH, Detector

from .series import Record, kinds, run, series, verdicts


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


def test_ratios_would_alarm_there() -> None:
    found = [kinds(run(judged(seed, lambda step: step / 80, hinge=True))) for seed in range(6)]
    assert any("spike" in some or "nonfinite" in some for some in found)


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
    alarms = run(records)
    assert 1 <= len(alarms) <= 4
    assert alarms[-1].step < 300


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


def test_a_single_bad_gradient_is_worth_a_line_and_two_are_an_alarm() -> None:
    records = series(100)
    records[60]["grad_norm"] = math.inf
    assert [(a.kind, a.severity) for a in run(records)] == [("nonfinite", INFO)]
    records[63]["grad_norm"] = math.nan
    assert kinds(run(records)) == ["nonfinite"]


def test_a_loss_scaler_may_look_for_its_scale() -> None:
    records = series(60)
    for record in records[:4]:
        record["grad_norm"] = math.inf
    assert kinds(run(records)) == []


def test_a_loss_of_exactly_zero_is_a_collapse() -> None:
    records = series(100)
    for record in records[70:]:
        record.update(loss=0.0, grad_norm=math.nan)
    assert kinds(run(records))[0] == "nonfinite"
    assert run(records)[0].step == 71


def test_a_gradient_explosion_is_seen_while_the_loss_is_normal() -> None:
    records = series(150)
    records[100]["grad_norm"] = 12.0
    (alert,) = run(records)
    assert (alert.kind, alert.severity, alert.step) == ("grad_explosion", ALARM, 101)
    assert "grad norm 12 is ×2" in alert.headline


def test_a_climbing_gradient_is_watched_before_it_explodes() -> None:
    records = series(150)
    for at, norm in zip(range(100, 110), [1.7, 1.9, 2.1, 2.2] + [2.3] * 6, strict=True):
        records[at]["grad_norm"] = norm
    (alert,) = run(records)
    assert (alert.kind, alert.severity) == ("grad_explosion", WATCH)
    assert alert.step == 103
    assert alert.headline.endswith("and climbing, loss still normal")


def test_a_large_gradient_lowers_what_the_loss_needs() -> None:
    calm = series(150)
    calm[100]["loss"] = 1.25
    assert run(calm) == []
    shaken = series(150)
    shaken[100].update(loss=1.25, grad_norm=2.4)
    assert kinds(run(shaken)) == ["spike"]


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


def test_a_run_that_never_returns_to_its_early_best_is_seen() -> None:
    records = [{"step": i, "loss": loss} for i, loss in enumerate([9.0, 3.0, *([4.5, 4.4] * 8)])]
    assert kinds(run(records)) == ["divergence"]


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


def test_a_gradient_that_climbs_beside_a_spike_is_not_said_to_leave_the_loss_normal() -> None:
    records = series(120)
    for record in records[100:103]:
        record["grad_norm"] *= 4.5
    assert "loss still normal" in run(records)[0].headline
    records[102]["loss"] = 3.0
    assert kinds(run(records)) == ["spike"]


def test_a_slow_but_sure_fall_of_a_high_loss_is_learning() -> None:
    assert run(series(120, level=lambda i: 1e6 * (1 - 1e-4 * i), noise=1e-5)) == []


def test_a_flat_high_loss_is_hinted_at_once() -> None:
    (alert,) = run(series(300, level=lambda i: 11.2, noise=0.01))
    assert (alert.kind, alert.severity) == ("plateau", INFO)
    assert run(series(300, level=lambda i: 2.1, noise=0.01)) == []


def evaluated(train: float, evals: list[float]) -> list[Record]:
    records = series(len(evals) * 50, level=lambda i: train ** (i / 50))
    for number, loss in enumerate(evals, 1):
        records[number * 50 - 1]["eval_loss"] = loss
    return records


def test_overfitting_needs_a_worse_evaluation_and_a_better_training_loss() -> None:
    (alert,) = run(evaluated(0.9, [1.0, 0.95, 0.99, 1.0, 1.01]))
    assert (alert.kind, alert.step) == ("overfit", 200)
    assert alert.baseline == 0.95
    assert run(evaluated(1.0, [1.0, 0.95, 0.99, 1.0, 1.01])) == []
    assert run(evaluated(0.9, [1.0, 0.95, 0.99, 0.94, 0.96])) == []


def test_an_evaluation_alone_is_no_training_record() -> None:
    records = series(60)
    for record in records[40:44]:
        record["grad_norm"] = 0.0
    records.insert(42, {"step": 42, "eval_loss": 1.0})
    records[45].update(grad_norm=0.0)
    assert "dead" in kinds(run(records))


def test_throughput_that_stays_low_is_told_and_dips_are_not() -> None:
    records = series(400)
    for i, record in enumerate(records):
        record["tok_s"] = 5000.0 if i % 50 else 500.0
    assert run(records) == []
    for record in records[300:]:
        record["tok_s"] *= 0.6
    (alert,) = run(records)
    assert (alert.kind, alert.severity) == ("throughput_drop", WATCH)
    assert alert.step < 340


def test_memory_that_only_grows_is_a_leak_and_long_batches_are_not() -> None:
    rng = random.Random(5)
    records = series(400)
    for record in records:
        record["mem_allocated"] = 4e9 + rng.random() * 1e9
    assert run(records) == []
    for i, record in enumerate(records[200:]):
        record["mem_allocated"] += i * 2e7
    (first, *_) = run(records)
    assert first.kind == "vram_leak"
    assert first.step <= 250


def test_a_spike_that_comes_back_is_recovered() -> None:
    records = series(200)
    records[150]["loss"] = 5.0
    (verdict,) = verdicts(records)
    assert (verdict.id, verdict.verdict, verdict.step) == ("spike-151", "recovered", 181)
    assert verdict.level_after == pytest.approx(1.0, abs=0.1)


def test_a_spike_that_stays_is_not_recovered() -> None:
    records = series(200, level=lambda i: 1.0 if i < 150 else 3.0)
    found = {verdict.id: verdict for verdict in verdicts(records)}
    assert found["spike-151"].verdict == "not recovered"
    assert found["spike-151"].level_before == pytest.approx(1.0, abs=0.05)
    assert found["spike-151"].level_after == pytest.approx(3.0, abs=0.2)


def test_numbers_that_stay_nan_are_not_recovered() -> None:
    records = series(100)
    for record in records[50:]:
        record["loss"] = math.nan
    (verdict,) = verdicts(records)
    assert (verdict.verdict, verdict.level_after) == ("not recovered", None)


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
    falling = series(110, level=lambda i: 3.0 * 0.99 ** min(i, 70) * 1.008 ** max(0, i - 70))
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


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"neg_cos": 0.99}, "mean cosine"),
        ({"contrastive": 2.08, "candidates": 8}, "contrastive loss"),
    ],
)
def test_representations_that_are_all_alike_are_a_collapse(more: Record, what: str) -> None:
    records = [{**record, **more} for record in series(120)]
    (alert,) = run(records)
    assert (alert.kind, alert.severity, alert.step) == ("collapse", ALARM, 50)
    assert alert.headline.startswith(what)
    healthy = {"neg_cos": 0.6, "contrastive": 1.2, "candidates": 8}
    assert run([{**record, **healthy} for record in series(120)]) == []


def test_the_rank_all_others_wait_for_is_named() -> None:
    rng = random.Random(2)
    records = series(400)
    for record in records:
        record["rank_s"] = [math.exp(rng.gauss(0, 0.05)) for _ in range(4)]
    assert run(records) == []
    for record in records[200:]:
        record["rank_s"][2] *= 1.12
    (alert,) = run(records)
    assert (alert.kind, alert.severity) == ("straggler", WATCH)
    assert "rank 2" in alert.headline
    assert 250 <= alert.step <= 300


def test_training_without_a_learning_rate_is_told() -> None:
    records = series(60)
    for record in records[30:]:
        record["lr"] = 0.0
    assert [(a.kind, a.step) for a in run(records)] == [("lr_misconfig", 40)]
    assert run(series(60)[:31]) == []


def test_a_loss_that_runs_away_in_the_warm_up_blames_the_learning_rate() -> None:
    losses = [3.0, 3.1, 3.0, 3.2, 10.0, 14.0, 20.0]
    records = [{"step": i, "loss": x, "lr": 1e-3 * (i + 1)} for i, x in enumerate(losses)]
    assert [a.kind for a in run(records)] == ["divergence", "lr_misconfig"]


def test_a_loss_scale_that_keeps_falling_is_an_early_warning() -> None:
    records = series(100)
    for i, record in enumerate(records):
        record["loss_scale"] = 65536.0 / 2 ** min(max(0, (i - 60) // 3), 8)
    (alert,) = run(records)
    assert (alert.kind, alert.severity) == ("nonfinite", WATCH)
    assert 70 < alert.step < 80


def test_every_kind_of_alert_gets_a_verdict() -> None:
    records = series(500)
    for i, record in enumerate(records):
        record["tok_s"] = 5000.0 if not 200 <= i < 235 else 2500.0
        record["lr"] = 0.0 if 100 <= i < 112 else 1e-4
    records[50]["grad_norm"] = 30.0
    found = {verdict.id.partition("-")[0]: verdict.verdict for verdict in verdicts(records)}
    assert found == {
        "grad_explosion": "recovered",
        "lr_misconfig": "recovered",
        "throughput_drop": "recovered",
    }
    stays = series(300)
    for i, record in enumerate(stays):
        record["tok_s"] = 5000.0 if i < 200 else 2500.0
    assert [v.verdict for v in verdicts(stays)] == ["not recovered"]


@pytest.mark.parametrize("leaking", [0, 2])
def test_a_leak_on_any_rank_is_told_once_with_its_rank(leaking: int) -> None:
    rng = random.Random(4)
    records = series(400)
    for i, record in enumerate(records):
        held = [40 + rng.choice((0, 0, 0, 0.6)) for _ in range(4)]
        held[leaking] *= 1 + 0.002 * max(0, i - 200)
        record["rank_mem"] = held
        record["mem_allocated"] = held[0]
    detector = Detector()
    first, *_ = run(records, detector)
    assert (first.kind, first.severity) == ("vram_leak", WATCH)
    assert f"of rank {leaking} " in first.headline
    assert 200 < first.step < 260
    assert {v.verdict for v in detector.take_verdicts()} == {"not recovered"}


def test_ranks_that_leak_together_are_one_alert() -> None:
    records = series(300)
    for i, record in enumerate(records):
        record["rank_mem"] = [40.0, 40 + 0.3 * max(0, i - 150), 40 + 0.2 * max(0, i - 150)]
    first, *others = run(records)
    assert "of rank 1 " in first.headline
    assert first.headline.endswith("as on rank 2")
    assert len({alert.id for alert in [first, *others]}) == 1 + len(others)


@pytest.mark.parametrize("comes_back", [True, False])
def test_what_blows_up_before_there_is_a_level_gets_its_verdict_too(comes_back: bool) -> None:
    records = series(60)
    for record in records[5 : 7 if comes_back else 60]:
        record["loss"] *= 9
    found = {verdict.id: verdict.verdict for verdict in verdicts(records)}
    assert found["divergence-7"] == ("recovered" if comes_back else "not recovered")
    assert found.keys() >= {alert.id for alert in run(records)[:2]}
    odd = series(60)
    odd[0]["loss"] = math.nan
    (verdict,) = verdicts(odd)
    assert (verdict.id, verdict.verdict) == ("nonfinite-1", "recovered")


@pytest.mark.parametrize(
    ("more", "said"), [(3, "undecided"), (12, "recovered"), (30, None)], ids=str
)
def test_the_end_of_a_run_judges_what_still_waits(more: int, said: str | None) -> None:
    records = series(150)[: 101 + more]
    records[100]["loss"] = 8.0
    detector = Detector()
    run(records, detector)
    assert [v.verdict for v in detector.last_verdicts()] == ([] if said is None else [said])
    before = detector.state()
    detector.last_verdicts()
    assert detector.state() == before


def test_a_loss_that_may_become_an_alarm_is_known_before_its_step_ends() -> None:
    records = series(150)
    records[120]["loss"] = 3.0
    detector = Detector()
    told = []
    for record in records:
        may = detector.may_alarm(record["loss"])
        told.append((may, bool(detector.update(record))))
    assert told[120] == (True, True)
    assert sum(may for may, _ in told) == 1
    assert not Detector().may_alarm(1e9)
