"""What an evaluation does when the memory of the device does not suffice."""

from __future__ import annotations

import pytest
import torch

from fttui.engine.train.objectives.evaluation_batch import EvaluationBatch


class Device:
    """A device on which batches up to a size fit; while there are graphs, half as large ones."""

    def __init__(self, fits: int) -> None:
        self.fits = fits
        self.graphs = True
        self.tried: list[int] = []
        self.said: list[str] = []

    def free_graphs(self) -> None:
        self.graphs = False

    def evaluate(self, size: int) -> int:
        self.tried.append(size)
        if size > self.fits // (2 if self.graphs else 1):
            raise torch.OutOfMemoryError
        return size

    def batch(self, size: int, *, alone: bool = True) -> EvaluationBatch:
        return EvaluationBatch(
            size,
            alone=alone,
            free_graphs=self.free_graphs,
            log=lambda level, text: self.said.append(f"{level}: {text}"),
        )


def test_graphs_are_freed_before_batches_become_smaller() -> None:
    device = Device(fits=8)
    assert device.batch(8).retry(device.evaluate) == 8
    assert device.tried == [8, 8]
    assert device.said == []


def test_batches_become_smaller_until_one_fits_and_stay_so() -> None:
    device = Device(fits=3)
    batch = device.batch(8)
    assert batch.retry(device.evaluate) == 2
    assert len(device.said) == 2
    assert "set eval.batch: 2" in device.said[-1]
    device.tried.clear()
    assert batch.retry(device.evaluate) == 2
    assert device.tried == [2]


def test_one_example_that_does_not_fit_ends_the_run() -> None:
    device = Device(fits=0)
    with pytest.raises(torch.OutOfMemoryError):
        device.batch(4).retry(device.evaluate)
    assert device.tried[-1] == 1


def test_several_ranks_would_have_to_agree() -> None:
    device = Device(fits=2)
    with pytest.raises(torch.OutOfMemoryError):
        device.batch(4, alone=False).retry(device.evaluate)
    assert device.tried == [4]
