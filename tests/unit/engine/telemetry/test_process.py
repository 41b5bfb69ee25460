from __future__ import annotations

import mmap

from fttui.engine.telemetry import process


def test_resident_memory_grows_with_what_is_held() -> None:
    before = process.rss_bytes()
    with mmap.mmap(-1, 50_000_000) as held:  # fresh pages; the heap may have free ones to give
        held.write(b"x" * 50_000_000)
        assert process.rss_bytes() - before > 25_000_000
