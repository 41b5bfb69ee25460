from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from fttui.engine.errors import CheckpointError
from fttui.engine.train.distributed.agreement import PendingResult, SingleRank, Table, attempt
from fttui.engine.train.loop.step_metrics import (
    DeviceReading,
    RankStep,
    StepMetrics,
    StepTotals,
    lists_ranks,
    on_same_device,
    settle,
    start_total,
)
from fttui.engine.train.usage.meter import RankUse


class Beside(SingleRank):
    """Of two ranks, the first; the other one tells what is given."""

    def __init__(self, other: list[float]) -> None:
        self._other = other

    def start_table(self, values: list[float]) -> PendingResult[Table]:
        assert len(values) == len(self._other)
        return PendingResult(lambda: np.array([values, self._other]))


def total(
    device: DeviceReading,
    *theirs: float,
    listed: bool = True,
    silent: tuple[bool, bool] = (False, False),
) -> StepTotals:
    """Totals of two ranks; `silent` says which of them has reported no loss."""
    own = RankStep(loss=0.0 if silent[0] else 2.0, grad_norm=1.0, parts={"ce": 3.0})
    tally = StepMetrics(tokens=10, samples=2, without_loss=silent[0])
    loss, reported = (0.0, 0.0) if silent[1] else (4.0, 1.0)
    other = [loss, 5.0, 30.0, 2.0, reported, 0.5, *theirs, 7.0, 50.0, 6.0, 0.0]
    used = RankUse(8.0, 60.0, 8.0)
    return start_total(own, tally, 0.25, Beside(other), device, used, listed=listed).read()


def test_every_rank_is_in_the_totals_with_what_its_device_tells() -> None:
    found = total(DeviceReading(100, 97.0, 60.0, 300.0), 90.0, 41.0, 88.0, 120.0)
    assert (found.loss, found.parts, found.tokens, found.samples) == (3.0, {"ce": 4.0}, 40, 4)
    assert (found.rank_s, found.rank_mem_bytes) == ([0.25, 0.5], [100, 90])
    assert (found.rank_tokens, found.skew_s) == ([10, 30], 0.25)
    assert found.rank_util == [97.0, 41.0]
    assert found.rank_temp_c == [60.0, 88.0]
    assert found.rank_power_w == [300.0, 120.0]
    assert found.uses == [RankUse(8.0, 60.0, 8.0), RankUse(7.0, 50.0, 6.0)]


def test_ranks_that_report_no_loss_do_not_count_for_its_mean() -> None:
    """Many scripts report their loss on rank 0 alone."""
    device = DeviceReading(100, 97.0, 60.0, 300.0), 90.0, 41.0, 88.0, 120.0
    found = {silent: total(*device, silent=silent).loss for silent in SILENT}
    assert found == dict(zip(SILENT, (2.0, 4.0, None), strict=True))
    assert total(*device, silent=(True, True)).tokens == 40


SILENT = ((False, True), (True, False), (True, True))


def test_what_one_device_does_not_tell_is_left_out_for_all_and_the_rest_is_there() -> None:
    found = total(DeviceReading(100, None, 60.0, 300.0), math.nan, 41.0, 88.0, 120.0)
    assert (found.rank_mem_bytes, found.rank_util) == ([], [])
    assert found.rank_temp_c == [60.0, 88.0]


@pytest.mark.parametrize(("own", "theirs"), [(True, 1.0), (True, 0.0), (False, 1.0)])
def test_a_step_has_no_target_if_every_rank_has_none(own: bool, theirs: float) -> None:
    step, use = RankStep(math.nan, math.nan, {}), RankUse(1.0, 1.0, 1.0)
    other = [math.nan, 8.0, 1.0, 1.0, 0.5, *[math.nan] * 4, 1.0, 1.0, 1.0, theirs]
    ranks = start_total(step, StepMetrics(), 0.5, Beside(other), DeviceReading(), use, lacking=own)
    assert ranks.read().without_targets == (own and theirs == 1.0)
    assert ranks.read() is ranks.read()
    alone = start_total(step, StepMetrics(), 0.5, SingleRank(), DeviceReading(), use, lacking=own)
    assert alone.read().without_targets == own


def test_a_step_without_lists_has_the_same_totals() -> None:
    readings = DeviceReading(100, 97.0, 60.0, 300.0), 90.0, 41.0, 88.0, 120.0
    whole, short = total(*readings), total(*readings, listed=False)
    lists: dict[str, Any] = {name: [] for name in whole._fields if name.startswith("rank_")}
    assert short == whole._replace(**lists)


def test_the_lists_of_the_steps_together_do_not_grow_with_the_ranks() -> None:
    for ranks in (2, 16, 64, 1024):
        listed = sum(lists_ranks(step, ranks) for step in range(1, 193))
        assert listed * ranks <= 192 * 16
        assert listed >= 3


def test_an_error_of_ours_is_told_in_its_own_words_and_others_by_their_kind() -> None:
    def fail(error: Exception) -> Any:
        raise error

    full = CheckpointError("the disk is full")
    assert attempt(lambda: fail(full)) == "the disk is full"
    assert attempt(lambda: fail(ValueError("odd"))) == "ValueError: odd"
    assert attempt(lambda: torch.zeros(1)) is None


def test_parts_on_another_device_than_the_loss_are_not_sent_with_it() -> None:
    loss = torch.zeros((), device="meta")
    parts = {"ce": torch.ones((), device="meta"), "reward": torch.tensor(2.0)}
    assert list(on_same_device(parts, loss)) == ["ce"]


def test_parts_arrive_by_their_names_in_their_order() -> None:
    parts = {"ce": torch.tensor(1.0), "kl": torch.tensor(2.0)}
    found = settle(torch.tensor(3.0), torch.tensor(4.0), StepMetrics(parts=parts)).read()
    assert found == RankStep(3.0, 4.0, {"ce": 1.0, "kl": 2.0})
    assert list(found.parts) == ["ce", "kl"]
