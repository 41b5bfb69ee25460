from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fttui.engine.losses.gather import gather_rows, gather_sizes
from tests.support.ranks import in_ranks

from .gather_worker import save_gradient, single_gradient


def test_one_process_keeps_its_tensor() -> None:
    rows = torch.ones(3, 2, requires_grad=True)
    gathered, offset = gather_rows(rows)
    assert gathered is rows
    assert offset == 0
    assert gather_sizes(3) == [3]


@pytest.mark.slow
def test_two_ranks_with_uneven_rows_get_the_gradient_of_one_process(tmp_path: Path) -> None:
    assert in_ranks(2, save_gradient, tmp_path) == [0, 0]
    expected = single_gradient()
    for number in (0, 1):
        gradient = torch.load(tmp_path / f"gradient-{number}.pt")
        torch.testing.assert_close(gradient, expected, atol=1e-12, rtol=0)
