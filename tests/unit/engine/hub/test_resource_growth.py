"""The hub ends before a faulty viewer makes it use too much memory or too many descriptors."""

from __future__ import annotations

import os
import resource
import time

import pytest

from fttui.engine.hub.__main__ import MAX_DESCRIPTORS, MAX_GROWTH_BYTES, _ResourceGrowth


class Usage:
    """What the process would measure of itself."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, descriptors: int) -> None:
        self.now, self.resident, self.opened = 10.0, 7 * MAX_GROWTH_BYTES, 3
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(resource, "getrlimit", lambda _: (descriptors, descriptors))
        monkeypatch.setattr(_ResourceGrowth, "_resident_bytes", lambda _: self.resident)
        monkeypatch.setattr(os, "listdir", lambda _: ["0"] * self.opened)
        self.growth = _ResourceGrowth()

    def too_much(self) -> bool:
        self.now += 1
        return self.growth.too_much()


def test_memory_counts_from_the_start_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = Usage(monkeypatch, 1 << 20)
    assert not usage.too_much()
    usage.resident += MAX_GROWTH_BYTES
    assert not usage.too_much()
    usage.resident += 1
    assert usage.too_much()


@pytest.mark.parametrize(
    ("limit", "most"), [(100, 75), (1 << 20, MAX_DESCRIPTORS)], ids=["three quarters", "at most"]
)
def test_descriptors_are_limited_to_a_share_of_what_the_system_allows(
    monkeypatch: pytest.MonkeyPatch, limit: int, most: int
) -> None:
    usage = Usage(monkeypatch, limit)
    usage.opened = most
    assert not usage.too_much()
    usage.opened = most + 1
    assert usage.too_much()


def test_it_is_measured_at_most_every_twentieth_of_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usage = Usage(monkeypatch, 100)
    usage.opened = 100
    usage.now += 0.04
    assert not usage.growth.too_much()
    usage.now += 0.02
    assert usage.growth.too_much()


def test_the_resident_memory_of_this_process_is_read() -> None:
    resident = _ResourceGrowth()._resident_bytes()
    assert resident % resource.getpagesize() == 0
    assert 2**22 < resident < 2**40
