"""What ranks send each other is bytes, which nothing unpickles."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]  # of torch

from fttui.engine.train.distributed.rank_agreement import RankAgreement


@pytest.fixture
def agreement() -> Iterator[RankAgreement]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield RankAgreement(0, 1)
    dist.destroy_process_group()


def test_bytes_and_errors_arrive_as_they_were_without_pickle(
    agreement: RankAgreement, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise AssertionError("what a peer sends is not unpickled")

    monkeypatch.setattr(pickle, "loads", refused)
    monkeypatch.setattr(pickle, "Unpickler", refused)
    for data in (b"", b"\x00", b"\x00text\xff" * 1000):
        assert agreement.gather(data) == [data]
    assert agreement.errors(None) == []
    assert agreement.errors("läuft nicht \udc80") == ["rank 0: läuft nicht \\udc80"]
