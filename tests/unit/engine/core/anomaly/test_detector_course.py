from __future__ import annotations

import math
import random

import pytest

from fttui.engine.core.anomaly import ALARM, WATCH, Detector
from fttui.engine.core.anomaly.lr_checks import RaisedLr

from .series import Record, kinds, run, series, verdicts


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


def raised_at_100(factor: float, evals: list[float]) -> list[Record]:
    """A falling training loss whose learning rate is raised at step 100, evaluated after it."""
    records = series(200, level=lambda i: 0.7 ** (i / 50))
    for record in records:
        record["lr"] = 1e-4 * (factor if record["step"] > 100 else 1.0)
    records[49]["eval_loss"], records[99]["eval_loss"] = 1.0, 0.95
    for record, loss in zip(records[105::25], evals, strict=False):
        record["eval_loss"] = loss
    return records


def test_an_evaluation_right_after_a_raised_rate_is_not_called_overfitting() -> None:
    (alert,) = run(raised_at_100(1.0, [1.2]))
    assert (alert.kind, alert.step) == ("overfit", 106)
    assert run(raised_at_100(3.0, [1.2])) == []
    (alert,) = run(raised_at_100(3.0, [1.2, 1.2]))  # the rate has been in force for 31 records
    assert (alert.kind, alert.step) == ("overfit", 131)
    assert run(raised_at_100(3.0, [1.2, 0.9])) == []


def test_a_warm_up_and_a_schedule_do_not_count_as_a_raised_rate() -> None:
    rate = RaisedLr()
    for step in range(1, 200):
        rate.update(1e-3 * min(step / 100, 1.0) * (1 - step / 300))
        assert rate.settled or step < 30
    rate.update(0.0)
    rate.update(1e-3)
    assert rate.settled


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


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"neg_cos": 0.99}, "mean cosine"),
        (
            {"contrastive": 2.08, "candidates": 8},
            "contrastive loss 2.08 is ×1 the loss of random guessing",
        ),
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
    assert "those of the other ranks" in alert.headline
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
    assert first.headline.endswith("(also on rank 2)")
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
        usual = detector.usual_up_to()
        may = usual is not None and record["loss"] > usual
        told.append((may, bool(detector.update(record))))
    assert told[120] == (True, True)
    assert sum(may for may, _ in told) == 1
    assert Detector().usual_up_to() is None
