"""Made-up training runs, each near a threshold of the detector, for the golden test."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

Record = dict[str, Any]


@dataclass
class Scene:
    """A run and the settings of the detector that watches it."""

    name: str
    records: list[Record]
    settings: dict[str, Any] = field(default_factory=dict)


def run(
    name: str,
    steps: int,
    *changes: Callable[[int, Record, Random], None],
    noise: float = 0.02,
    level: float = 2.0,
    **settings: Any,
) -> Scene:
    """A calm run with a change: every change may alter the record of a step."""
    rng, records = Random(name), []
    for step in range(1, steps + 1):
        record: Record = {
            "step": step,
            "loss": level * math.exp(rng.gauss(0, noise)),
            "grad_norm": math.exp(rng.gauss(0, 0.1)),
            "lr": 1e-4,
        }
        for change in changes:
            change(step, record, rng)
        records.append(record)
    return Scene(name, records, settings)


def times(key: str, factor: float, *steps: int) -> Callable[[int, Record, Random], None]:
    def change(step: int, record: Record, _: Random) -> None:
        if step in steps:
            record[key] *= factor

    return change


def put(key: str, value: Callable[..., Any]) -> Callable[[int, Record, Random], None]:
    def change(step: int, record: Record, rng: Random) -> None:
        record[key] = value(step, rng)

    return change


def ramp(key: str, rate: float, begin: int, end: int) -> Callable[[int, Record, Random], None]:
    def change(step: int, record: Record, _: Random) -> None:
        record[key] *= math.exp(rate * min(max(step - begin, 0), end - begin))

    return change


def scenes() -> Iterator[Scene]:
    """All scenes; the same on every machine."""
    for make in (_losses, _gradients, _drifts, _starts, _dead, _progress, _machine, _settings):
        yield from make()
    yield from (_mixed(seed) for seed in range(12))


def _losses() -> Iterator[Scene]:
    for noise in (0.0, 0.03, 0.15):
        for size in (1.02, 1.04, 1.1, 1.19, 1.25, 1.6, 1.9, 2.2, 2.4, 2.7, 4.0):
            bump = times("loss", size, 150)
            yield run(f"spike {noise} ×{size}", 175, bump, noise=noise)
    for size in (1.05, 1.3, 2.7):
        late = times("loss", size, 340, 341, 360, 380)
        yield run(f"late spikes ×{size}", 400, late, noise=0.2)
        both = times("grad_norm", 4.0, 150)
        yield run(f"supported spike ×{size}", 190, times("loss", size, 150), both)
    for sensitivity in (0.25, 4.0):
        for size in (1.1, 1.5):
            bump = times("loss", size, 150)
            yield run(f"spike {sensitivity}×{size}", 190, bump, sensitivity=sensitivity)
    for name, value in (("nan", math.nan), ("inf", math.inf), ("zero", 0.0)):
        at = (60, 61, 64, 90)
        bad = put("loss", lambda s, r, v=value, a=at: v if s in a else 1 + r.gauss(0, 0.01))
        yield run(f"loss {name}", 140, bad)
    signed = put("loss", lambda s, r: r.gauss(0, 0.1) + (4.0 if s in (80, 120) else 0.0))
    yield run("signed loss", 200, signed)
    late_sign = put("loss", lambda s, r: 1 + r.gauss(0, 0.05) - (1.5 if s > 70 else 0))
    yield run("loss turns negative", 160, late_sign)
    sparse = put("loss", lambda s, r: r.gauss(0, 1.0) if s % 5 == 0 else 0.0)
    yield run("mostly zero signed loss", 160, sparse)
    yield run("rounded loss", 160, put("loss", lambda s, r: 2.0 + 0.5 * (s == 120)))
    judged = put("loss", lambda s, r: 0.69 * math.exp(-s / 20) * math.exp(r.gauss(0, 0.5))
                 + (0.5 if s in (100, 130) else 0))  # fmt: skip
    yield run("judged", 180, judged, falls_to_zero=True)
    yield run("not judged", 180, judged)
    zeros = put("loss", lambda s, r: 0.0 if s > 90 else 0.69 * math.exp(r.gauss(0, 0.2)))
    yield run("judged to zero", 140, zeros, falls_to_zero=True)


def _gradients() -> Iterator[Scene]:
    for size in (2.5, 2.9, 3.2, 5.5, 6.5, 9.0, 11.0, 40.0):
        yield run(f"norm ×{size}", 180, times("grad_norm", size, 150))
        climb = times("grad_norm", size, 150, 151, 153, 154)
        yield run(f"norms ×{size}", 200, climb)
        rise = times("loss", 1.25, 152, 153, 154)
        yield run(f"norms ×{size} with loss", 200, climb, rise)
    noisy = put(
        "grad_norm", lambda s, r: math.exp(r.gauss(0, 0.8)) * (20 if s in (170, 178) else 1)
    )
    yield run("noisy norms", 220, noisy)
    for at in ((60,), (60, 65), (60, 70), (60, 71), (3, 4, 5, 6, 7, 8), (3, 4, 5, 6, 7)):
        bad = put("grad_norm", lambda s, r, a=at: math.nan if s in a else math.exp(r.gauss(0, 0.1)))
        yield run(f"norm nan at {at}", 120, bad)
    zero = put("loss", lambda s, r: 0.0 if s in (80, 81) else 1 + r.gauss(0, 0.01))
    over = put("grad_norm", lambda s, r: math.inf if s == 80 else 1.0)
    yield run("overflow to zero", 130, zero, over)
    yield run("zero twice", 130, zero)
    fading = put("grad_norm", lambda s, r: 1 + 30 * math.exp(-(s - 100) / 3) * (s >= 100))
    yield run("fading norm", 150, fading)


def _drifts() -> Iterator[Scene]:
    for noise in (0.002, 0.03):
        for total in (0.02, 0.04, 0.1, 0.17, 0.2, 0.4):
            for span in (10, 60):
                drift = ramp("loss", total / span, 170, 170 + span)
                yield run(f"drift {noise} {total} in {span}", 330, drift, noise=noise)
    back = ramp("loss", 0.03, 170, 190), ramp("loss", -0.03, 210, 230)
    yield run("drift and back", 360, *back)
    falling = ramp("loss", -0.01, 0, 150), ramp("loss", 0.01, 150, 200)
    yield run("falling, then rising", 300, *falling)
    yield run("drift without a norm", 300, ramp("loss", 0.02, 150, 190),
              put("grad_norm", lambda s, r: None))  # fmt: skip


def _starts() -> Iterator[Scene]:
    for size in (1.25, 1.35, 2.0, 2.9, 3.2, 8.0):
        for at in (3, 4, 12, 30, 39):
            yield run(f"start ×{size} from {at}", 70, ramp("loss", math.log(size), at, at + 1))
    rising = put("lr", lambda s, r: 1e-3 * min(s / 30, 1.0))
    yield run("start with a rising rate", 70, ramp("loss", 0.5, 10, 20), rising)
    after = put("lr", lambda s, r: 1e-3 * min(s / 5, 1.0, (80 - s) / 75))
    yield run("start with a falling rate", 70, ramp("loss", 0.5, 10, 20), after)


def _dead() -> Iterator[Scene]:
    for norm in (0.0, 9e-7, 2e-6):
        for length in (4, 5, 6, 11):
            dead = put("grad_norm", lambda s, r, n=norm, m=length:
                       n if 60 < s <= 60 + m else 1.0)  # fmt: skip
            yield run(f"norm {norm} for {length}", 110, dead)
    again = put("grad_norm", lambda s, r: 0.0 if 60 < s <= 64 or 80 < s <= 87 or s > 100 else 1.0)
    yield run("dead for longer and longer", 130, again)
    zero = put("loss", lambda s, r: 0.0)
    yield run("loss 0 from the start", 40, zero, put("grad_norm", lambda s, r: None))
    yield run("loss 0 with a gradient", 40, zero)
    yield run("nothing at all", 40, zero, put("grad_norm", lambda s, r: 0.0))


def _progress() -> Iterator[Scene]:
    for begin, fall in ((10.0, 0.0), (10.0, 0.02), (10.0, 0.1), (3.9, 0.0), (4.1, 0.0)):
        flat = put("loss", lambda s, r, b=begin, f=fall: b * (1 - f * (s > 20))
                   + r.gauss(0, 0.02))  # fmt: skip
        yield run(f"flat at {begin} -{fall}", 220, flat)
    for stop in (80, 160):
        learned = put("loss", lambda s, r, e=stop: 3 - 2 * min(s, e) / e + r.gauss(0, 0.03))
        yield run(f"falls until {stop}", 420, learned)
        tiny = put("lr", lambda s, r: 1e-4 if s < 120 else 9e-6)
        yield run(f"falls until {stop}, at a tiny rate", 300, learned, tiny)
        low = put("lr", lambda s, r: 1e-4 if s < 120 else 1.2e-5)
        yield run(f"falls until {stop}, at a low rate", 300, learned, low)
    better = put("loss", lambda s, r: 3 * math.exp(-s / 300) + r.gauss(0, 0.01))
    for name, losses in (
        ("twice 4 %", (2.0, 1.9, 1.976, 1.98)),
        ("twice 2 %", (2.0, 1.9, 1.938, 1.94)),
        ("once 11 %", (2.0, 1.9, 2.11)),
        ("once 9 %", (2.0, 1.9, 2.07)),
        ("worse and better", (2.0, 1.9, 1.98, 1.95, 1.98, 1.8, 2.2)),
        ("bad", (2.0, -1.0, math.nan, 3.0)),
    ):
        marks = {30 * (n + 1): value for n, value in enumerate(losses)}
        evaluated = put("eval_loss", lambda s, r, m=marks: m.get(s))
        yield run(f"evaluations {name}", 240, better, evaluated)
        yield run(f"evaluations {name}, no progress", 240, evaluated)
    for worth in (0.97, 0.99):
        little = put("loss", lambda s, r, w=worth: 3.0 if s < 65 else 3.0 * w)
        marked = put("eval_loss", lambda s, r: {30: 2.0, 60: 1.9, 90: 2.2}.get(s))
        yield run(f"evaluations, training at {worth}", 130, little, marked)


def _machine() -> Iterator[Scene]:
    for share in (0.78, 0.82):
        for length in (10, 20, 300):

            def rate(
                step: int, record: Record, rng: Random, f: Any = share, m: Any = length
            ) -> None:
                record["tok_s"] = 1e3 * math.exp(rng.gauss(0, 0.01))
                record["tok_s"] *= f if 60 < step <= 60 + m else 1

            yield run(f"throughput ×{share} for {length}", 460 if length > 99 else 140, rate)
    for rise in (0.01, 0.012, 0.016, 0.02):
        for key in ("mem_allocated", "vram_gb"):
            held = put(key, lambda s, r, f=rise: 10 * (1 + f * max(0, s - 35) / 10)
                       + abs(r.gauss(0, 1e-3)))  # fmt: skip
            yield run(f"{key} grows by {rise}", 140, held)
    saw = put("mem_allocated", lambda s, r: 10 + (s % 30) / 3)
    yield run("memory comes and goes", 200, saw)
    early = put("mem_allocated", lambda s, r: 10 + min(s, 30) / 3)
    yield run("memory grows at first", 150, early)
    ranks = put("rank_mem", lambda s, r: [10.0, 10 + max(0, s - 40) / 25, 10 + max(0, s - 40) / 30])
    yield run("two ranks leak", 160, ranks)
    fewer = put("rank_mem", lambda s, r: [10.0 + s / 25] * (2 if s < 60 else 3))
    yield run("ranks change", 160, fewer)
    for slow in (1.03, 1.048, 1.052, 1.1, 1.5):
        for length in (45, 60, 200):
            times_ = put("rank_s", lambda s, r, f=slow, m=length:
                         [1.0, 1.0, f if 20 < s <= 20 + m else 1.0, 1.01])  # fmt: skip
            yield run(f"rank 2 ×{slow} for {length}", 180, times_)
    moving = put("rank_s", lambda s, r: [1.0 + 0.2 * (s // 40 == n) for n in range(3)])
    yield run("slow rank moves", 160, moving)
    yield run("rank times with zeros", 60, put("rank_s", lambda s, r: [0.0, 1.0]))
    yield run("one rank", 60, put("rank_s", lambda s, r: [1.0]))


def _settings() -> Iterator[Scene]:
    for length in (9, 10, 11):
        lr = put("lr", lambda s, r, m=length: 0.0 if 30 < s <= 30 + m else 1e-4)
        yield run(f"rate 0 for {length}", 70, lr)
    for halvings, every in ((3, 5), (4, 5), (4, 8), (5, 6), (5, 8)):
        scale = put("loss_scale", lambda s, r, h=halvings, e=every:
                    65536.0 / 2 ** min(max(0, (s - 40) // e + (s >= 40)), h))  # fmt: skip
        yield run(f"{halvings} halvings, one in {every}", 130, scale)
    first = put("loss_scale", lambda s, r: 65536.0 / 2 ** min(s // 3, 6))
    yield run("halvings at first", 60, first)
    twice = put("loss_scale", lambda s, r: 65536.0 / (32 if 40 < s < 60 or s > 100 else 1))
    yield run("two falls of the loss scale", 140, twice)
    for cosine in (0.975, 0.985):
        for length in (49, 50, 60):
            alike = put("neg_cos", lambda s, r, c=cosine, m=length: c if 20 < s <= 20 + m else 0.3)
            yield run(f"cosine {cosine} for {length}", 120, alike)
    for share in (0.985, 0.993, 1.007, 1.015):
        for count in (1, 2, 8):
            guess = put("contrastive", lambda s, r, f=share, k=count:
                        f * math.log(k) if s > 20 else 0.5)  # fmt: skip
            yield run(f"guessing {share} of {count}", 110, guess,
                      put("candidates", lambda s, r, k=count: k))  # fmt: skip
    plain = put("loss", lambda s, r: math.log(8) if s > 20 else 3.0)
    yield run("guessing by the whole loss", 110, plain, put("candidates", lambda s, r: 8))


def _mixed(seed: int) -> Scene:
    """Noise, gaps, odd values and a step back: everything at once."""
    rng = Random(seed)

    def change(step: int, record: Record, _: Random) -> None:
        record["loss"] *= math.exp(rng.gauss(0, 0.3)) if seed % 5 == 4 else 1.0
        record["lr"] = 1e-4 * min(1, step / 30)
        record["epoch"] = step / 100
        if rng.random() < 0.02:
            record["loss"] *= rng.choice([1.5, 3.0, 10.0, math.nan, math.inf])
            record["grad_norm"] *= rng.choice([1.0, 4.0, 12.0, math.nan])
        if 150 < step < 190 and seed % 3 == 0:
            record["loss"] *= 1.5
        if step % 25 == 0:
            record["eval_loss"] = record["loss"]
        if step == 200 and seed % 4 == 1:
            record["step"] = 120
        if rng.random() < 0.03:
            for key in rng.sample(sorted(record), 2):
                record[key] = None

    sensitivity = (1.0, 0.5, 2.0)[seed % 3]
    return run(f"mixed {seed}", 260, change, noise=0.05, sensitivity=sensitivity)
