from __future__ import annotations

import mmap
from pathlib import Path

import psutil
import pytest

from fttui.engine.telemetry import process


def test_resident_memory_grows_with_what_is_held() -> None:
    before = process.rss_bytes()
    with mmap.mmap(-1, 50_000_000) as held:  # fresh pages; the heap may have free ones to give
        held.write(b"x" * 50_000_000)
        assert process.rss_bytes() - before > 25_000_000


@pytest.fixture
def cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def _cgroup(limit: str, used: str) -> None:
        for name, text in (("CGROUP_LIMIT", limit), ("CGROUP_USED", used)):
            path = tmp_path / name
            path.write_text(text)
            monkeypatch.setattr(process, name, path)

    return _cgroup


def test_a_container_limit_below_the_machine_counts(cgroup) -> None:
    cgroup("1000000\n", "400000\n")
    assert process.host_memory() == process.HostMemory(1_000_000, 600_000)


def test_a_container_over_its_limit_has_nothing_left(cgroup) -> None:
    cgroup("1000000", "1400000")
    assert process.host_memory().available_bytes == 0


@pytest.mark.parametrize("limit", ["max", str(2**62)])
def test_without_a_limit_the_machine_counts(cgroup, limit: str) -> None:
    cgroup(limit, "1")
    assert process.host_memory().total_bytes == psutil.virtual_memory().total
