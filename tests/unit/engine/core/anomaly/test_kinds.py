"""Kinds of weakness that detectors have on logs they were not made for, each with its control."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator

import pytest

from fttui.engine.core.anomaly import INSTABILITY, Detector

from .series import Record, kinds, run

SEEDS = range(4)
Noise = Callable[[random.Random], float]


def logged(losses: list[float], norms: list[float | None] | None = None) -> list[Record]:
    """A log of losses, and of norms if there are any."""
    norms = norms or [None] * len(losses)
    return [
        {"step": step, "loss": loss, "grad_norm": norm, "lr": 1e-4}
        for step, (loss, norm) in enumerate(zip(losses, norms, strict=True), 1)
    ]


def unstable(records: list[Record]) -> list[int]:
    """Steps of the alerts of instability."""
    return [alert.step for alert in run(records) if alert.kind in INSTABILITY]


def around(level: float, noise: float, count: int, seed: int) -> list[float]:
    """Log-normal noise around a level."""
    rng = random.Random(seed)
    return [level * math.exp(rng.gauss(0, noise)) for _ in range(count)]


@pytest.mark.parametrize("share", [0.0, 0.05, 0.3, 0.6])
def test_losses_that_are_rounded_to_zero_now_and_then_are_quiet(share: float) -> None:
    told = 0
    for seed in range(8):
        rng = random.Random(seed)
        losses = [0.0 if rng.random() < share else round(x, 3) for x in around(0.3, 1.0, 600, seed)]
        told += len(unstable(logged(losses)))
    assert told <= 1


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_a_loss_far_above_values_that_are_often_zero_is_found(share: float) -> None:
    rng = random.Random(1)
    losses = [0.0 if rng.random() < share else x for x in around(0.3, 0.3, 300, 1)]
    losses[250] = 30.0
    assert unstable(logged(losses)) == [251]


@pytest.mark.parametrize(("length", "period"), [(6, 60), (10, 120)])
def test_a_group_of_long_batches_is_no_divergence(length: int, period: int) -> None:
    for seed in SEEDS:
        losses = around(0.5, 0.2, 900, seed)
        for i in range(len(losses)):
            losses[i] *= 1.8 if i % period >= period - length else 1
        assert len(unstable(logged(losses))) <= 1


def test_a_lift_that_stays_is_a_divergence() -> None:
    for seed in SEEDS:
        losses = around(0.5, 0.2, 400, seed)
        losses[300:] = [2.2 * loss for loss in losses[300:]]
        assert any(300 < step <= 330 for step in unstable(logged(losses)))


@pytest.mark.parametrize("memory", [0.3, 0.6])
def test_noise_with_a_memory_is_quiet(memory: float) -> None:
    told = 0
    for seed in SEEDS:
        rng, x, losses = random.Random(seed), 0.0, []
        for _ in range(2000):
            x = memory * x + math.sqrt(1 - memory**2) * rng.gauss(0, 0.2)
            losses.append(0.4 * math.exp(x))
        told += len(unstable(logged(losses)))
    assert told <= 4


@pytest.mark.parametrize("fall", [0.0, 40.0])
def test_a_steep_start_hides_no_later_spike(fall: float) -> None:
    for seed in SEEDS:
        losses = around(0.02, 0.2, 90, seed)
        losses = [x * (1 + fall * math.exp(-i / 4)) for i, x in enumerate(losses)]
        losses[60] *= 15
        assert 61 in unstable(logged(losses))


@pytest.mark.parametrize("falls", [False, True])
def test_a_rise_right_after_the_fall_is_found(falls: bool) -> None:
    for seed in SEEDS:
        noise = around(1.0, 0.01, 100, seed)
        course = [(30 * math.exp(-i / 30) if falls else 8.0) for i in range(40)]
        course += [course[-1] * (1 + 0.8 * (1 - math.exp(-i / 15))) for i in range(60)]
        steps = unstable(logged([a * b for a, b in zip(course, noise, strict=True)]))
        assert any(40 < step <= 85 for step in steps)


def sparse(course: Callable[[int], float], noise: float, seed: int) -> list[float]:
    """A log with few records, which reaches its best loss in a single one at the beginning."""
    rng = random.Random(seed)
    start = [9.0, 2.8 * math.exp(rng.gauss(0, noise))]
    return start + [course(i) * math.exp(rng.gauss(0, noise)) for i in range(40)]


@pytest.mark.parametrize("factor", [1.4, 1.6])
def test_a_loss_that_stays_above_the_best_of_its_first_records_is_a_divergence(
    factor: float,
) -> None:
    for seed in SEEDS:
        losses = sparse(lambda i: 2.8 * factor * (1 + i / 200), 0.025, seed)
        assert any(step <= 20 for step in unstable(logged(losses)))


@pytest.mark.parametrize(
    ("course", "noise"),
    [(lambda i: 4.4 * math.exp(-i / 60), 0.025), (lambda i: 4.4, 0.2), (lambda i: 3.3, 0.025)],
    ids=["falls", "noisy", "a little above"],
)
def test_one_low_record_at_the_beginning_is_no_level(
    course: Callable[[int], float], noise: float
) -> None:
    for seed in SEEDS:
        assert unstable(logged(sparse(course, noise, seed))) == []


def heavy_tailed(count: int, every: int, size: float, seed: int) -> list[float]:
    """Noise of 3 % with an outlier of one size now and then."""
    losses = around(2.0, 0.03, count, seed)
    for start in range(every, count, every):
        losses[start + random.Random(start + seed).randrange(every // 2) - every] *= size
    return losses


def test_a_run_with_outliers_of_one_size_reports_only_the_first_ones() -> None:
    for seed in SEEDS:
        steps = unstable(logged(heavy_tailed(2400, 150, 1.4, seed)))
        assert 1 <= len(steps) <= 4
        assert steps[-1] < 800


def test_an_outlier_above_all_before_is_found_though_the_noise_has_doubled() -> None:
    for seed in SEEDS:
        calm = heavy_tailed(600, 150, 1.3, seed)
        losses = calm + around(2.0, 0.06, 400, seed + 9)
        losses[900] *= 2
        assert 901 in unstable(logged(losses))


def test_a_norm_twice_the_largest_before_is_found_though_smaller_ones_are_frequent() -> None:
    for seed in SEEDS:
        norms: list[float | None] = list(around(1.0, 0.15, 900, seed))
        for at in [*range(30, 880, 40), 890]:
            norms[at] = 6.5 if at < 890 else 14.0
        assert 891 in unstable(logged(around(2.0, 0.03, 900, seed), norms))


@pytest.mark.parametrize("at", [15, 25, 39, 60])
def test_a_blow_up_of_a_loss_around_zero_is_found_in_its_first_records_too(at: int) -> None:
    for seed in SEEDS:
        rng = random.Random(seed)
        losses = [rng.gauss(0, 0.002) for _ in range(at + 10)]
        assert unstable(logged(losses)) == []
        losses[at] = 0.2
        assert unstable(logged(losses)) == [at + 1]


def test_a_loss_that_begins_at_zero_and_grows_finds_its_size() -> None:
    for seed in SEEDS:
        rng = random.Random(seed)
        sizes = [0.002 * min(1.0, step / 40) for step in range(3, 120)]
        losses = [0.0, 0.0] + [rng.gauss(size, 3 * size) for size in sizes]
        assert unstable(logged(losses)) == []


def epochs(seed: int, tokens: int) -> list[Record]:
    """Epochs of 50 steps; the last one has a sixteenth of the texts and so four times the noise."""
    rng = random.Random(seed)
    records = []
    for step in range(1, 2001):
        last = step % 50 == 0
        loss = 2.0 * math.exp(rng.gauss(0, 0.2 if last else 0.05))
        norm = math.exp(rng.gauss(0, 0.8 if last else 0.2))
        records.append({"step": step, "loss": loss, "grad_norm": norm, "lr": 1e-4})
        records[-1]["tokens"] = 250 if last and tokens else tokens
    return records


def test_the_noise_of_a_step_with_few_tokens_is_no_instability() -> None:
    blind = sum(len(unstable(epochs(seed, 0))) for seed in range(8))
    assert sum(len(unstable(epochs(seed, 4000))) for seed in range(8)) <= 1 < blind


def test_a_blow_up_in_a_step_with_few_tokens_is_found() -> None:
    for seed in SEEDS:
        records = epochs(seed, 4000)
        records[1799]["loss"] *= 8
        assert 1800 in unstable(records)


def test_a_second_blow_up_after_the_return_is_told() -> None:
    losses = around(1.0, 0.03, 400, 1)
    for start in (150, 300):
        for i in range(30):
            losses[start + i] *= 1 + 3 * math.exp(-i / 8)
    steps = unstable(logged(losses))
    assert 151 in steps
    assert 301 in steps


@pytest.mark.parametrize("at", [9, 14, 45])
def test_a_blow_up_is_seen_in_the_warm_up_too(at: int) -> None:
    for seed in SEEDS:
        losses = around(1.0, 0.05, 60, seed)
        norms: list[float | None] = list(around(1.0, 0.1, 60, seed + 50))
        calm = logged(losses, norms)
        assert unstable(calm) == []
        calm[at]["grad_norm"] *= 20
        assert unstable(calm) == [at + 1]
        lost = logged(losses)
        lost[at]["loss"] *= 100
        assert at + 1 in unstable(lost)


def test_a_norm_that_is_high_where_the_loss_is_changes_no_limit() -> None:
    """Hard batches have both, so that one says nothing about the other."""
    for seed in SEEDS:
        rng = random.Random(seed)
        hard = [rng.gauss(0, 1) for _ in range(800)]
        losses = [0.5 * math.exp(0.35 * x) for x in hard]
        norms: list[float | None] = [math.exp(0.6 * x + 0.4 * rng.gauss(0, 1)) for x in hard]
        both, alone = logged(losses, norms), logged(losses)
        spikes = [a.step for a in run(both) if a.kind == "spike"]
        assert spikes == [a.step for a in run(alone) if a.kind == "spike"]
        assert len(unstable(both)) <= 1


def test_noise_that_grows_while_the_loss_is_memorised_is_quiet() -> None:
    told = 0
    for seed in SEEDS:
        rng = random.Random(seed)
        told += len(
            unstable(
                logged(
                    [
                        math.exp(-7 * i / 1000 + (0.2 + i / 1000) * rng.gauss(0, 1))
                        for i in range(1000)
                    ]
                )
            )
        )
    assert told <= 1


def test_a_norm_that_is_logged_as_zero_is_not_dead_while_the_loss_falls() -> None:
    falling = [8 * math.exp(-i / 40 + 0.02 * random.Random(i).gauss(0, 1)) for i in range(80)]
    assert "dead" not in kinds(run(logged(falling, [0.0] * 80)))
    assert "dead" in kinds(run(logged([8.0] * 80, [0.0] * 80)))


def test_records_that_are_logged_twice_are_no_quiet_run() -> None:
    for seed in SEEDS:
        once = around(0.6, 0.04, 300, seed)
        assert unstable(logged([x for x in once for _ in range(2)])) == []


def heavy(rng: random.Random) -> float:
    """Noise with exponential tails."""
    return 0.05 * rng.choice((-1, 1)) * rng.expovariate(1)


NOISES: dict[str, Noise] = {
    "normal": lambda rng: rng.gauss(0, 0.1),
    "wide": lambda rng: rng.gauss(0, 0.5),
    "exponential": heavy,
}


@pytest.mark.parametrize("name", NOISES)
def test_false_alarms_keep_to_the_rate_that_was_asked_for(name: str) -> None:
    """Of noise as heavy as the tail that is assumed, and of lighter noise."""
    records, told = 0, 0
    for seed in range(6):
        rng = random.Random(seed)
        losses = [2.0 * math.exp(NOISES[name](rng)) for _ in range(2500)]
        told += len(unstable_at(logged(losses), rate=10.0))
        records += len(losses)
    assert told <= 2 * 10.0 * records / 10_000


def unstable_at(records: list[Record], rate: float) -> list[int]:
    """Steps of the alerts of instability at a rate of false alarms per 10,000 steps."""
    detector = Detector(false_alarms=rate)
    return [a.step for record in records for a in detector.update(record) if a.kind in INSTABILITY]


def _sizes() -> Iterator[float]:
    yield from (1.35, 1.6, 2.2, 4.0)


def test_a_lower_rate_tells_no_more_and_a_higher_one_no_less() -> None:
    for size in _sizes():
        losses = around(2.0, 0.08, 300, 3)
        losses[250] *= size
        counts = [len(unstable_at(logged(losses), rate)) for rate in (0.01, 0.1, 1.0, 10.0, 100.0)]
        assert counts == sorted(counts)


def test_hints_at_a_plateau_are_rare() -> None:
    losses = [math.exp(max(0.0, 1 - i / 300)) * x for i, x in enumerate(around(1, 0.05, 9000, 1))]
    hints = [alert for alert in run(logged(losses)) if alert.kind == "plateau"]
    assert len(hints) == 1


def interrupted(seed: int, gaps: list[int]) -> list[Record]:
    """A log that writes every step of a quiet start, then every 200th step of noisy training."""
    rng = random.Random(seed)
    early = [3.0 * math.exp(-i / 60 + rng.gauss(0, 0.004)) for i in range(80)]
    late = [0.2 * math.exp(-i / 400 + rng.gauss(0, 0.12)) for i in range(len(gaps))]
    norms = [math.exp(-i / 20 + rng.gauss(0, 0.05)) for i in range(80)]
    norms += [0.6 * math.exp(rng.gauss(0, 0.3)) for _ in gaps]
    records = logged(early + late, [*norms])
    step = 80
    for record, gap in zip(records[80:], gaps, strict=True):
        step += gap
        record["step"] = step
    return records


def test_another_interval_of_the_log_begins_new_levels() -> None:
    told = sum(len(unstable(interrupted(seed, [200] * 150))) for seed in range(8))
    assert told <= 1


def test_a_blow_up_after_a_change_of_the_interval_is_found() -> None:
    for seed in SEEDS:
        records = interrupted(seed, [200] * 60)
        for record in records[110:]:
            record["loss"] *= 6.0
        assert any(80 + 200 * 30 < step <= 80 + 200 * 40 for step in unstable(records))


@pytest.mark.parametrize("gap", [3, 50])
def test_one_gap_in_a_log_changes_nothing(gap: int) -> None:
    losses = around(1.0, 0.03, 120, 3)
    losses[63] = 3.0
    records = logged(losses)
    for record in records[60:]:
        record["step"] += gap
    assert unstable(records) == [64 + gap]


def outliers(seed: int, count: int = 2500) -> list[float]:
    """A loss with an outlier in every hundredth record, whose size has an exponential tail."""
    rng = random.Random(seed)
    height, losses = 0.0, []
    for _ in range(count):
        height *= 0.6
        if rng.random() < 0.01:
            height = 0.2 + rng.expovariate(3.0)
        losses.append(2.0 * math.exp(height + rng.gauss(0, 0.02)))
    return losses


def test_outliers_that_come_again_and_again_raise_few_alarms() -> None:
    told = [len(unstable(logged(outliers(seed)))) for seed in range(8)]
    assert sum(told) / len(told) <= 4.5


def test_a_blow_up_that_lasts_is_found_after_many_outliers() -> None:
    for seed in SEEDS:
        losses = outliers(seed)
        losses[2000:] = [3.0 * loss for loss in losses[2000:]]
        assert any(2000 < step <= 2040 for step in unstable(logged(losses)))
