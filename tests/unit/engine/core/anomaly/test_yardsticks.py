"""Where each kind of alert counts as recovered, at the borders of its thresholds."""

from __future__ import annotations

import math

import pytest

from fttui.engine.core.anomaly import Detector
from fttui.engine.core.anomaly.alerts import Finding
from fttui.engine.core.anomaly.state import State, memory_by_rank
from fttui.engine.core.anomaly.verdicts import OpenAlert, Yardstick
from fttui.engine.protocol.thresholds import SLOW_RANK_RATIO

from .series import run, series


def finding(kind: str, what: str = "loss", value: float = 9.0, level: float | None = None,
            rank: int = 0) -> Finding:  # fmt: skip
    return Finding(kind=kind, severity="alarm", what=what, value=value, level=level, rank=rank)


def learned(channel: str, *values: float, bends: tuple[float, ...] = ()) -> State:
    """A state that has learned these values of a channel, and this noise."""
    state = State()
    state.stability.scale.unit = 1.0
    signal = getattr(state.stability, channel)
    for x in values:
        signal.recent.push(x)
    for x in bends:
        signal.bends.push(x)
    return state


def verdict(state: State, by: Yardstick, record: dict[str, object]) -> str:
    """The verdict after as many records like this one as the yardstick waits for."""
    state.verdicts.pending = [OpenAlert(id="a", by=by)]
    for n in range(by.records):
        found = state.verdicts.update(state.measures(record), 100 + n, state.back)
        assert bool(found) == (n == by.records - 1)
    return found[0].verdict


@pytest.mark.parametrize(
    ("what", "record", "recovered"),
    [
        (finding("throughput_drop", "throughput", 500.0, 1000.0), {"tok_s": 905.0}, True),
        (finding("throughput_drop", "throughput", 500.0, 1000.0), {"tok_s": 904.0}, False),
        (finding("nonfinite", "loss scale", 2.0, 65536.0), {"loss_scale": 16385.0}, True),
        (finding("nonfinite", "loss scale", 2.0, 65536.0), {"loss_scale": 16383.0}, False),
        (finding("vram_leak", "memory", 100.0, 90.0), {"mem_allocated": 101.0}, True),
        (finding("vram_leak", "memory", 100.0, 90.0), {"mem_allocated": 101.1}, False),
        (finding("vram_leak", "memory", 100.0, 90.0, rank=1), {"rank_mem": [300.0, 90.0]}, True),
        (finding("vram_leak", "memory", 100.0, 90.0, rank=1), {"rank_mem": [90.0, 300.0]}, False),
        (finding("nonfinite", "loss", math.nan), {"loss": 1.0, "grad_norm": 1.0}, True),
        (finding("nonfinite", "loss", math.nan), {"loss": 1.0, "grad_norm": math.inf}, False),
        (finding("nonfinite", "loss", math.nan), {"loss": math.nan, "grad_norm": 1.0}, False),
        (finding("divergence", "loss", 9.0, 2.0), {"loss": 2.06}, True),
        (finding("divergence", "loss", 9.0, 2.0), {"loss": 2.07}, False),
        (finding("divergence", "loss", 9.0, 2.0), {"loss": math.nan}, False),
    ],
)
def test_before_any_level_is_learned(
    what: Finding, record: dict[str, object], recovered: bool
) -> None:
    state = State()
    assert (verdict(state, state.yardstick(what), record) == "recovered") == recovered


@pytest.mark.parametrize(("norm", "recovered"), [(2.0, True), (2.01, False), (math.inf, False)])
@pytest.mark.parametrize("kind", ["grad_explosion", "nonfinite"])
def test_a_gradient_norm_is_back_within_a_factor_of_two(
    kind: str, norm: float, recovered: bool
) -> None:
    state = learned("grad", 0.0, 0.0, 0.0)
    by = state.yardstick(finding(kind, "grad norm", 50.0, 1.0))
    assert (verdict(state, by, {"grad_norm": norm}) == "recovered") == recovered


def test_noise_widens_the_way_back() -> None:
    noise = tuple(n / 10 for n in range(100))
    quiet, noisy = learned("loss", 1.0), learned("loss", 1.0, bends=noise)
    narrow = quiet.yardstick(finding("spike", level=1.0))
    assert narrow == Yardstick(channel="loss", level=1.0, margin=0.03)
    sd = noisy.stability.loss.sds()[0]
    assert noisy.yardstick(finding("spike", level=1.0)).margin == 2 * sd
    grad = learned("grad", 0.0, bends=noise).yardstick(finding("grad_explosion", "grad norm"))
    assert grad.margin == 2 * sd > math.log(2)


def test_a_divergence_is_compared_with_the_level_before_it() -> None:
    state = learned("loss", 3.0, 3.0, 3.0)
    assert state.yardstick(finding("divergence", level=2.0)).level == 3.0
    state.stability.trend.best.push(2.0)
    assert state.yardstick(finding("divergence", level=2.0)).level == 2.0
    assert state.yardstick(finding("spike", level=2.0)).level == 3.0


def test_a_plateau_is_over_where_the_loss_has_improved() -> None:
    by = learned("loss", 1.0).yardstick(finding("plateau", level=1.0))
    assert by == Yardstick(channel="loss", level=0.98, records=60)
    noise = tuple(n / 10 for n in range(100))
    state = learned("loss", 1.0, bends=noise)
    by = state.yardstick(finding("plateau", level=1.0))
    assert by.level == 1.0 - state.stability.loss.sds()[0]


@pytest.mark.parametrize(
    ("what", "by"),
    [
        (finding("overfit", "evaluation loss", 3.0, 2.0),
         Yardstick(channel="eval", level=2.0, records=2, last=1)),
        (finding("straggler", "seconds of rank 2:", 3.0, 2.0),
         Yardstick(channel="lead", level=math.log(SLOW_RANK_RATIO))),
        (finding("dead", "gradient", 0.0), Yardstick(channel="dead", level=0.0)),
        (finding("collapse", "contrastive loss", 2.0, 2.0),
         Yardstick(channel="collapse", level=0.0)),
        (finding("lr_misconfig", "learning rate", 0.0), Yardstick(channel="lr_zero", level=0.0)),
        (finding("lr_misconfig", "loss", 9.0, 2.0),
         Yardstick(channel="plain loss", level=2.0, margin=0.06)),
        (finding("nonfinite", "grad norm", math.inf), Yardstick(channel="odd", level=0.0)),
    ],
)  # fmt: skip
def test_other_kinds_have_a_yardstick_of_their_own(what: Finding, by: Yardstick) -> None:
    assert State().yardstick(what) == by


def test_a_verdict_takes_half_of_its_last_values() -> None:
    state, by = State(), Yardstick(channel="plain loss", level=1.0, records=4, last=4)
    state.verdicts.watch("a", by)
    assert state.verdicts.watches("plain loss")
    assert not state.verdicts.watches("loss")
    for step, loss in enumerate((1.0, math.nan), 1):
        assert not state.verdicts.update(state.measures({"loss": loss}), step, state.back)
    (early,) = state.verdicts.settle(2, state.back)
    assert (early.verdict, early.level_after) == ("undecided", 1.0)
    assert state.verdicts.pending == []
    state.verdicts.watch("b", by)
    for step, loss in enumerate((1.0, 1.0, math.nan), 1):
        assert not state.verdicts.update(state.measures({"loss": loss}), step, state.back)
    (late,) = state.verdicts.settle(3, state.back)
    assert late.verdict == "not recovered", "two finite values of four are no majority"
    assert (late.id, late.step, late.level_before, late.level_after) == ("b", 3, 1.0, 1.0)


def test_values_come_back_in_their_own_units() -> None:
    state = State()
    state.stability.scale.unit = 0.5
    assert state.back("loss", state.stability.scale.to(3.0)) == pytest.approx(3.0)
    assert state.back("grad", math.log(3.0)) == pytest.approx(3.0)
    assert state.back("lead", math.log(3.0)) == pytest.approx(3.0)
    assert state.back("rate", -math.log(3.0)) == pytest.approx(3.0)
    assert state.back("scale", -math.log(3.0)) == pytest.approx(3.0)
    assert state.back("memory 0", 3.0) == 3.0


def test_memory_is_that_of_all_ranks_or_of_the_only_one() -> None:
    assert memory_by_rank({"rank_mem": [1, 2], "mem_allocated": 3}) == [1.0, 2.0]
    assert memory_by_rank({"rank_mem": [], "mem_allocated": 3}) == [3.0]
    assert memory_by_rank({}) == []
    state = State()
    assert state.measures({}) == {"odd": 0.0, "dead": 0, "collapse": 0, "lr_zero": 0}
    assert state.measures({"loss": 2.0, "grad_norm": 0.0, "tok_s": 0.0})["grad"] is None
    assert "rate" not in state.measures({"tok_s": 0.0})


@pytest.mark.parametrize(
    ("after", "back"), [(3, False), (7, False), (8, True), (25, True)], ids=str
)
def test_a_loss_that_stays_at_its_level_for_eight_records_is_back(after: int, back: bool) -> None:
    records = series(300)
    records[200]["loss"] *= 3.0
    detector = Detector()
    run(records[: 201 + after], detector)
    run([{"step": 202 + after, "loss": 9.0}], detector)
    assert detector.back_before() == ({"spike-201"} if back else set())


def test_a_loss_that_stays_high_is_not_back() -> None:
    records = series(300)
    for record in records[200:]:
        record["loss"] *= 1.7
    detector = Detector()
    run(records[:225], detector)
    assert detector.back_before() == set()
