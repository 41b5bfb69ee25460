from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from fttui.engine.core.guard import GuardDecision, UpdateVerdict
from fttui.engine.protocol.events import StepFinished
from fttui.engine.protocol.usage.amounts import Usage
from fttui.engine.train.distributed.agreement import PendingResult
from fttui.engine.train.loop.memory_meter import MemoryReading
from fttui.engine.train.loop.step_metrics import RankStep, StepMetrics, StepTotals
from fttui.engine.train.loop.step_record import StepRecord
from fttui.engine.train.usage.meter import RankUse

READING = MemoryReading(11, 12, 13, 14, 15.0, 16.0, 17.0, 18.0)


def totals(ranks: int) -> StepTotals:
    return StepTotals(
        loss=2.0,
        parts={"ce": 1.5, "top1": 0.5},
        tokens=100,
        samples=4,
        skew_s=[0.0, 0.5][ranks - 1],
        rank_s=[1.0, 1.5][:ranks],
        rank_tokens=[40, 60][:ranks],
        rank_mem_bytes=[5, 6][:ranks],
        rank_util=[7.0, 8.0][:ranks],
        rank_temp_c=[9.0, 10.0][:ranks],
        rank_power_w=[11.0, 12.0][:ranks],
        uses=[RankUse(3.0), RankUse(4.0)][:ranks],
    )


def used(uses: Sequence[RankUse]) -> Usage:
    return Usage(seconds=sum(use.seconds for use in uses))


def record(ranks: int = 1, **more: Any) -> StepRecord:
    tally = StepMetrics()
    tally.data_s, tally.compute_s, tally.optimizer_s = 0.1, 0.2, 0.3
    own = RankStep(2.0, 3.0, {}, held=False)
    given = {
        "number": 1,
        "tally": tally,
        "clock": SimpleNamespace(),
        "figures": PendingResult(lambda: own),
        "held": None,
        "gradients": [],
        "clip": 1.5,
        "lr_schedule": 0.25,
        "lr_scale": 0.5,
        "nonfinite": "skip",
        "memory": READING,
        "seen": SimpleNamespace(),
        "epoch": 0.75,
        "judged_at": 0.0,
        "step_s": 0.5,
        "decision": GuardDecision(UpdateVerdict.APPLY),
        "totals": PendingResult(lambda: totals(ranks)),
    }
    return StepRecord(**{**given, **more})


def test_figures_of_the_device_reach_the_event_by_their_names() -> None:
    event = record().event(used)
    assert READING._asdict().keys() <= set(StepFinished.__struct_fields__)
    assert {name: getattr(event, name) for name in READING._fields} == READING._asdict()


@pytest.mark.parametrize("ranks", [1, 2])
def test_figures_of_every_rank_are_there_with_several_ranks_only(ranks: int) -> None:
    event, names = (
        record(ranks).event(used),
        [n for n in totals(1)._fields if n.startswith("rank_")],
    )
    assert len(names) == 6
    for name in names:
        assert getattr(event, name) == (getattr(totals(2), name) if ranks == 2 else [])


def test_the_event_of_a_step() -> None:
    event = record(2).event(used)
    assert (event.loss, event.grad_norm, event.clip, event.clipped) == (2.0, 3.0, 1.5, True)
    assert (event.lr, event.lr_schedule, event.lr_scale, event.epoch) == (0.125, 0.25, 0.5, 0.75)
    assert (event.parts, event.extra) == ({"ce": 1.5}, {"top1": 0.5})
    assert (event.tokens, event.samples, event.step_s, event.skew_s) == (100, 4, 0.5, 0.5)
    assert (event.tokens_per_s, event.samples_per_s) == (200.0, 8.0)
    assert (event.data_s, event.compute_s, event.optimizer_s) == (0.1, 0.2, 0.3)
    assert not event.skipped
    assert event.usage == Usage(seconds=7.0)


def test_a_refused_update_is_skipped_and_fp16_names_its_loss_scale() -> None:
    event = record(decision=GuardDecision(UpdateVerdict.SKIP), loss_scale=64.0).event(used)
    assert event.skipped
    assert event.extra == {"top1": 0.5, "loss_scale": 64.0}


@pytest.mark.parametrize(
    ("norm", "clip", "factor"),
    [(3.0, 1.5, 0.5), (1.5, 1.5, 1.0), (3.0, None, 1.0), (float("inf"), 1.5, 1.0)],
)
def test_the_factor_that_clipping_multiplied_the_gradients_with(
    norm: float, clip: float | None, factor: float
) -> None:
    own = RankStep(2.0, norm, {}, held=False)
    assert record(clip=clip, figures=PendingResult(lambda: own)).clip_factor == factor


def test_memory_is_compared_as_reserved_or_as_allocated() -> None:
    assert record().held_bytes(reserves=True) == 12
    assert record().held_bytes(reserves=False) == 11
