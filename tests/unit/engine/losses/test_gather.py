from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fttui.engine.losses.gather import gather_rows, gather_sizes

from .gather_worker import single_gradient

WORKER = Path(__file__).with_name("gather_worker.py")


def test_one_process_keeps_its_tensor() -> None:
    rows = torch.ones(3, 2, requires_grad=True)
    gathered, offset = gather_rows(rows)
    assert gathered is rows
    assert offset == 0
    assert gather_sizes(3, torch.device("cpu")) == [3]


@pytest.mark.slow
def test_two_ranks_with_uneven_rows_get_the_gradient_of_one_process(tmp_path: Path) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(WORKER), str(rank), "2", str(tmp_path)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        errors = [rank.communicate(timeout=100)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(errors)
    expected = single_gradient()
    for number in (0, 1):
        gradient = torch.load(tmp_path / f"gradient-{number}.pt")
        torch.testing.assert_close(gradient, expected, atol=1e-12, rtol=0)
