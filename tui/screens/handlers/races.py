"""The handler of races: asks for variants, shows the cost, and starts the race in a process."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from shlex import quote
from typing import Any

from fttui.engine.errors import FttuiError
from fttui.engine.run.run_dir import RunDirectory

from ...app_base import AppBase
from ...connection.race.planning import plan_race
from ...connection.race.race_file import conducted_by, read_race
from ...connection.race.race_process import start_race
from ...connection.race.race_source import LocalRace, RemoteRace, plan_there, run_there
from ...connection.ssh.remote_host import RemoteHost
from ...connection.ssh.remote_runs import list_runs_on
from ...dialogs.prompts import ParsedInput
from ...dialogs.race_prompt import read_race as read_words
from ...dialogs.race_prompt import request_of
from ...dialogs.race_text import planned_lines, unfinished_lines
from ...view_model.race.race_state import RaceState
from ...view_model.race.request import FORMS, RaceRequest
from ..modals.confirm import ConfirmScreen
from ..modals.prompt import PromptScreen
from ..race_page import RacePage
from ..tables.checkpoints import CheckpointsScreen

_TITLE = "race"


def ask_race(app: AppBase) -> None:
    """Ask for the variants of a race; show the race in progress, if there is one."""
    if app.run_directory is None and _host_of(app) is not None:
        _ask(app, chosen_checkpoint(app))
    elif (run := _run_of(app)) is not None:
        _work(app, _open(app, run, chosen_checkpoint(app)))


def begin_race(app: AppBase, text: str, checkpoint: str | None = None) -> None:
    """Show the cost of a typed race, and start it once confirmed.

    An empty text shows the newest race instead.
    """
    if app.run_directory is None and (host := _host_of(app)) is not None:
        _work(app, _begin_there(app, host, text, checkpoint))
        return
    if (run := _run_of(app)) is None:
        return
    if not text.strip():
        app.push_screen(RacePage(LocalRace(run)))
        return
    _work(app, _begin(app, run, replace(request_of(text), checkpoint=checkpoint)))


def _host_of(app: AppBase) -> RemoteHost | None:
    """Return the host of a remote run that the app may change; None for other runs."""
    host = getattr(app.session, "remote_host", None)
    return host if isinstance(host, RemoteHost) and not app.session.read_only else None


async def _begin_there(app: AppBase, host: RemoteHost, text: str, checkpoint: str | None) -> None:
    """Show the cost of a race of a remote run, and start it there once confirmed.

    An empty text shows the newest race instead.
    """
    run = await _folder_there(host, app.state.run_id)
    if not text.strip():
        await app.push_screen(RacePage(RemoteRace(host, run)))
        return
    arguments = list(request_of(text).arguments)
    start = f"{run}@{checkpoint}" if checkpoint else run
    rows = await asyncio.to_thread(plan_there, host, start, arguments)
    take = ["--take"] if app.state.controls else []

    async def begin() -> None:
        words = ["race", start, *arguments, "--yes", "--detach", *take]
        await asyncio.to_thread(run_there, host, words)
        await app.push_screen(RacePage(RemoteRace(host, run, began=True), began=True))

    def answer(key: str | None) -> None:
        if key == "y":
            _work(app, begin())

    title = f"race on {host.host}"
    await app.push_screen(ConfirmScreen(title, rows, [("y", "race")], alarm=True), answer)


async def _folder_there(host: RemoteHost, run_id: str) -> str:
    """Return the folder of a run on its host.

    Raises:
        FttuiError: the host does not answer, or does not list the run.
    """
    found = await list_runs_on(host, may_prompt=False)
    if isinstance(found, FttuiError):
        raise found
    path = next((run.path for run in found if run.id == run_id), None)
    if path is None:
        raise FttuiError(f"{host.host} does not list {run_id}; start the race there")
    return path


def _run_of(app: AppBase) -> RunDirectory | None:
    if app.run_directory is None:
        command = f"fttui race {quote(app.state.run_id)} {FORMS}"
        app.tell(f"a race is started on the machine of its run, with: {command}", title=_TITLE)
    return app.run_directory


def chosen_checkpoint(app: AppBase) -> str | None:
    """Return the checkpoint under the cursor of their table; None on other screens."""
    key = app.screen.key_under_cursor() if isinstance(app.screen, CheckpointsScreen) else None
    return key if key in {one.name for one in app.state.run.checkpoints} else None


def _work(app: AppBase, work: Coroutine[Any, Any, None]) -> None:
    app.run_worker(_told(app, work), group="race", exclusive=True)


async def _told(app: AppBase, work: Coroutine[Any, Any, None]) -> None:
    """Do something in the background; an error is shown, because it would close the app."""
    try:
        await work
    except (FttuiError, OSError) as error:
        app.tell(str(error), title=_TITLE)


async def _open(app: AppBase, run: RunDirectory, checkpoint: str | None) -> None:
    if await asyncio.to_thread(conducted_by, run) is not None:
        await app.push_screen(RacePage(LocalRace(run)))
        return
    known = await asyncio.to_thread(read_race, run)
    if known is not None and not known.ended:
        _ask_how_to_go_on(app, run, known)
        return

    _ask(app, checkpoint)


def _ask(app: AppBase, checkpoint: str | None) -> None:
    """Ask for the values to try."""

    def answer(found: ParsedInput | None) -> None:
        if found is not None and found.text is not None:
            begin_race(app, found.text, checkpoint)

    where = f"from {checkpoint}" if checkpoint else "from here"
    title = f"race settings {where}: the values to try"
    app.push_screen(PromptScreen(title, FORMS, lambda text: read_words(text, app.state)), answer)


def _ask_how_to_go_on(app: AppBase, run: RunDirectory, known: RaceState) -> None:
    def answer(key: str | None) -> None:
        if key:
            _start(app, run, None, ["--resume"] if key == "y" else ["--cancel"])

    rows = [next(unfinished_lines(known, run.id)) + "."]
    ways = [("y", "resume it"), ("b", "return to its start")]
    app.push_screen(ConfirmScreen("interrupted race", rows, ways), answer)


async def _begin(app: AppBase, run: RunDirectory, wanted: RaceRequest) -> None:
    planned = await asyncio.to_thread(plan_race, run, wanted)

    def answer(key: str | None) -> None:
        if key == "y":
            _start(app, run, wanted.checkpoint, [*wanted.arguments, "--yes"])

    rows = list(planned_lines(planned))
    await app.push_screen(ConfirmScreen("race", rows, [("y", "race")], alarm=True), answer)


def _start(app: AppBase, run: RunDirectory, checkpoint: str | None, arguments: list[str]) -> None:
    take = ["--take"] if app.state.controls else []
    try:
        process = start_race(run, checkpoint, [*arguments, *take])
    except (FttuiError, OSError) as error:
        app.tell(str(error), title=_TITLE)
        return
    app.push_screen(RacePage(LocalRace(run, process), began=True))
