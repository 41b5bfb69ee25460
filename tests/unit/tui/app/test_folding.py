"""How deliveries become the state: at once, and together when records come fast."""

from __future__ import annotations

import asyncio
import platform
from typing import Any

import pytest

from fttui.tui.app import MANY, FttuiApp, return_large_blocks
from fttui.tui.view_model.app_state import fold
from tests.support.session_double import FakeSession, eventful


def counted_folds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the number of deliveries of each fold."""
    sizes: list[int] = []

    def counted(state: Any, batch: Any, now: float) -> Any:
        sizes.append(len(batch))
        return fold(state, batch, now)

    monkeypatch.setattr("fttui.tui.app.fold", counted)
    return sizes


async def test_records_that_come_fast_are_folded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    session = FakeSession(eventful())
    app = FttuiApp(session, clock=lambda: session.script.now)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        sizes = counted_folds(monkeypatch)
        for _ in range(200):
            session.script.train(1)
            session.push()
            await asyncio.sleep(0)
        while app.state.run.seq < session.script.records[-1].seq:
            await asyncio.sleep(0.02)
        assert len(sizes) <= MANY + 40
        assert sum(sizes) >= 200


async def test_what_is_no_record_is_folded_at_once_with_all_that_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = FakeSession(eventful())
    app = FttuiApp(session, clock=lambda: session.script.now)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        monkeypatch.setattr("fttui.tui.app.BUSY_S", 3600.0)
        for _ in range(2 * MANY):
            session.script.train(1)
            session.push()
        session.beat()
        await pilot.pause()
        assert app.state.run.seq == session.script.records[-1].seq


def test_freed_arrays_leave_the_process_on_linux() -> None:
    assert return_large_blocks() is (platform.libc_ver()[0] == "glibc")
