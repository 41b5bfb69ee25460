"""The loss in the output of a model, which is used if a script reports none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fttui.engine.watch.plain.loop import PlainRun
from fttui.engine.watch.shield import Shield


class Odd(dict[str, Any]):
    """An output that cannot be read."""

    def get(self, *_: Any) -> Any:
        raise RuntimeError("not yet computed")


def loop(*, in_step: bool) -> Any:
    run = PlainRun.__new__(PlainRun)
    run._in_step, run._returned, run._shield = in_step, [], Shield(lambda error: None)
    return run


@pytest.mark.parametrize("in_step", [True, False])
def test_it_is_kept_within_a_step_only(in_step: bool) -> None:
    """After the end of the watching nobody would take it again, and it would fill the memory."""
    run = loop(in_step=in_step)
    loss = torch.ones(1, requires_grad=True).sum()
    run._note_output(nn.Linear(1, 1), (), {"loss": loss})
    assert [float(one) for one in run._returned] == [1.0] * in_step


def test_after_an_error_of_the_watching_nothing_is_kept() -> None:
    run = loop(in_step=True)
    run._note_output(nn.Linear(1, 1), (), Odd())
    assert run._shield.broken
    run._note_output(nn.Linear(1, 1), (), {"loss": torch.ones(1, requires_grad=True).sum()})
    assert run._returned == []
