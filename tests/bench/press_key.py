"""A person with one key: presses R in the real app on a run that trains, and says yes.

The app gets the records that the run has journaled so far. Training waits at the end of its step
meanwhile, so that the command takes effect at the same step whatever the load of the machine is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from fttui.engine.protocol.commands import AnyCommand, describe_command
from fttui.engine.protocol.events import Record
from fttui.engine.protocol.requests import Beat
from fttui.engine.run.reports import read_report
from fttui.engine.run.run_dir import RunDirectory
from fttui.tui.app import FttuiApp
from fttui.tui.dialogs.incident_text import headline
from fttui.tui.preferences import Preferences
from fttui.tui.screens.modals.confirm import ConfirmScreen
from fttui.tui.view_model.connection_port import (
    BeatArrived,
    Deliver,
    Link,
    LinkChanged,
    RecordsArrived,
)
from tests.support.played import read_records

LIMIT_S = 60.0
KEYS = "R", "y"


class JournalSession:
    """A session that delivers a journal as it is now and keeps the commands it is given."""

    read_only = False
    viewer, issuer = "one-key", "ann@bench"

    def __init__(self, run: RunDirectory, records: list[Record]) -> None:
        self.run_id = run.id
        self.submitted: list[AnyCommand] = []
        self._run = run
        self._records = records

    async def listen(self, deliver: Deliver) -> None:
        """Deliver all records and a heartbeat."""
        deliver(RecordsArrived(self._records))
        newest = self._records[-1].seq
        deliver(BeatArrived(Beat(time=time.time(), last_seq=newest, engine_alive=True)))
        deliver(LinkChanged(Link.LIVE))
        await asyncio.Event().wait()

    def submit(
        self,
        command: AnyCommand,
        *,
        reason: str = "",
        if_generation: int | None = None,
        take: bool = False,
    ) -> str:
        """Keep a command."""
        self.submitted.append(command)
        return f"key-{len(self.submitted)}"

    async def take_control(self) -> str | None:
        """Control is not needed."""
        return None

    async def release_control(self) -> None:
        """Control was not taken."""

    async def fetch_report(self, report: str) -> str:
        """Read a report from the run folder."""
        return read_report(self._run, report)

    async def close(self) -> None:
        """No connection is open."""


def press(run: RunDirectory, known: Callable[[list[Record]], bool]) -> tuple[str, str]:
    """Press R in the app and confirm; return the command that was sent and the incident in words.

    Both are empty if the key does nothing.

    Args:
        run: the run, which trains in this process and waits.
        known: whether the journal holds what has happened; its writer is a thread.
    """
    return asyncio.run(_press(run, _journaled(run, known)))


def _journaled(run: RunDirectory, known: Callable[[list[Record]], bool]) -> list[Record]:
    until = time.monotonic() + LIMIT_S
    while not known(records := read_records(run)):
        if time.monotonic() > until:
            raise TimeoutError("the journal does not hold the newest step")
        time.sleep(0.01)
    return records


async def _press(run: RunDirectory, records: list[Record]) -> tuple[str, str]:
    session = JournalSession(run, records)
    app = FttuiApp(session, run=run, preferences=Preferences())
    async with app.run_test(size=(120, 40)) as pilot:
        await _until(lambda: app.state.link.link is Link.LIVE and app.state.run.seq > 0)
        current = app.state.run.current_incident
        await pilot.press(KEYS[0])
        await pilot.pause()
        if current is None or not isinstance(app.screen, ConfirmScreen):
            return "", ""
        said = headline(app.state.run, current)
        await pilot.press(KEYS[1])
        await _until(lambda: bool(session.submitted))
    return describe_command(session.submitted[0]), said


async def _until(happened: Callable[[], bool]) -> None:
    until = time.monotonic() + LIMIT_S
    while not happened():
        if time.monotonic() > until:
            raise TimeoutError("the app did not do what was expected")
        await asyncio.sleep(0.02)
