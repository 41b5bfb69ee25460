"""The gate gives every rank the same verdict, though each rank judges its own loss."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fttui.engine.core.guard import NOTHING_PASSES, Limits
from fttui.engine.train.loop import update_gate
from fttui.engine.train.loop.update_gate import FinalGate, UpdateGate

LIMITS = Limits(loss=3.0, grad_norm=1.0)


class TwoRanks:
    """`torch.distributed` on one of two ranks; the verdict of the other rank is known."""

    ReduceOp = torch.distributed.ReduceOp

    def __init__(self, other_holds: float) -> None:
        self._other = torch.tensor(other_holds)

    def is_initialized(self) -> bool:
        return True

    def get_world_size(self) -> int:
        return 2

    def all_reduce(self, tensor: torch.Tensor, op: object) -> None:
        combine: Any = torch.maximum if op is self.ReduceOp.MAX else torch.add
        tensor.copy_(combine(tensor, self._other))


@pytest.mark.parametrize(
    ("loss", "other_holds", "held"),
    [(2.0, 0.0, 0.0), (2.0, 1.0, 1.0), (4.0, 0.0, 1.0), (4.0, 1.0, 1.0)],
)
def test_one_rank_out_of_limits_holds_the_update_back_on_both(
    monkeypatch: pytest.MonkeyPatch, loss: float, other_holds: float, held: float
) -> None:
    monkeypatch.setattr(update_gate, "dist", TwoRanks(other_holds))
    gate = UpdateGate(torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], fused=True))
    assert float(gate.judge(torch.tensor(loss), torch.tensor(0.5), LIMITS)) == held


@pytest.mark.parametrize(
    ("loss", "norm", "held"),
    [(3.0, 1.0, 0.0), (3.001, 1.0, 1.0), (3.0, 1.001, 1.0), (float("nan"), 0.5, 1.0)],
)
def test_an_update_exactly_at_its_limits_passes(loss: float, norm: float, held: float) -> None:
    gate = UpdateGate(torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))]))
    assert float(gate.judge(torch.tensor(loss), torch.tensor(norm), LIMITS)) == held


LARGEST, INF, NAN = torch.finfo(torch.float32).max, float("inf"), float("nan")


@pytest.mark.parametrize(
    ("loss", "norm", "held"),
    [
        *((0.0, 0.0, 0.0), (-2.0, 0.5, 0.0), (LARGEST, LARGEST, 0.0), (-LARGEST, 1e-45, 0.0)),
        *((NAN, 0.5, 1.0), (1.0, NAN, 1.0), (INF, 0.5, 1.0), (-INF, 0.5, 1.0), (1.0, INF, 1.0)),
        (INF, NAN, 1.0),
    ],
)
def test_a_final_gate_refuses_what_is_not_finite_whatever_the_limits(
    loss: float, norm: float, held: float
) -> None:
    gate = FinalGate(torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))]))
    assert float(gate.judge(torch.tensor(loss), torch.tensor(norm), LIMITS)) == held
    assert gate.decides(LIMITS)
    assert not gate.decides(NOTHING_PASSES)
