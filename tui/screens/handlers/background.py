"""Work of the app in background workers: fetch reports, files and other runs, change control."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from fttui.engine.errors import EngineGone, FttuiError
from fttui.engine.protocol.data.sample import SampleRecord
from fttui.engine.protocol.requests import ConfigTexts
from fttui.engine.run.configs import read_configs
from fttui.engine.run.data_sample import read_sample

from ...actions import key_of
from ...app_base import AppBase
from ...connection.config_info import config_view
from ...connection.run_list import RunListing, read_other_run
from ...view_model.app_state import OtherRun
from ...view_model.connection_port import SupportsFetchConfigs, SupportsFetchDataSample
from ...view_model.history.ranking import MOST_RUNS
from ..incident_page import IncidentPage

CONFIG_TRIES, CONFIG_RETRY_S = 5, 1.0
"""How often, and how many seconds apart, a remote run is asked for its configuration, because the
connection may not be up yet."""
READ_AT_ONCE = 16
"""Runs of a comparison that are read before it is drawn again."""
REPORTS_READ = 8
"""At most so many reports of an incident's alarms are fetched, that of the main alarm first."""


def open_report(app: AppBase, name: str) -> None:
    """Fetch the reports of an incident's alarms and show it; `name` is its id or that of an alarm.

    If a report cannot be fetched, a notification says so.
    """
    app.run_worker(_open_report(app, name), group="report", exclusive=True)


def change_control(app: AppBase, *, take: bool) -> None:
    """Take control of the run, or release it; a refusal is shown."""
    app.run_worker(_change_control(app, take=take), group="control", exclusive=True)


def compare_runs(app: AppBase, chosen: list[RunListing]) -> None:
    """Read the chosen runs and open the compare screen.

    This run, remote runs and those beyond `MOST_RUNS` are left out, and a notification
    says so.
    """
    app.run_worker(_compare_runs(app, chosen), group="compare", exclusive=True)


def load_config(app: AppBase) -> None:
    """Read the run's configuration into the app's state, from disk or over the connection."""
    app.run_worker(_load_config(app), group="config")


def load_data_sample(app: AppBase) -> None:
    """Read the sample of the data into the app's state, from disk or over the connection."""
    app.run_worker(_load_data_sample(app), group="data", exclusive=True)


async def _load_data_sample(app: AppBase) -> None:
    found: list[SampleRecord] = []
    if app.run_directory is not None:
        found = await asyncio.to_thread(read_sample, app.run_directory)
    elif isinstance(app.session, SupportsFetchDataSample):
        with suppress(FttuiError):
            found = await app.session.fetch_data_sample()
    if found:
        app.state = replace(app.state, data_sample=tuple(found))
        app.redraw()


async def _open_report(app: AppBase, name: str) -> None:
    incidents = app.state.run.incidents
    named = (i for i in incidents if name == i.id or any(name == a.event.id for a in i.alarms))
    incident = next(named, None)
    if incident is None:
        return
    alarms = [incident.main, *(a for a in incident.alarms if a is not incident.main)]
    reports: dict[str, str] = {}
    for name in [a.event.report for a in alarms if a.event.report][:REPORTS_READ]:
        try:
            reports[name] = await app.session.fetch_report(name)
        except (FttuiError, OSError) as error:
            app.tell(f"the report {name} cannot be fetched: {error}")
            break
    await app.push_screen(IncidentPage(incident.id, reports))


async def _change_control(app: AppBase, *, take: bool) -> None:
    try:
        refusal = await app.session.take_control() if take else None
        if not take:
            await app.session.release_control()
    except FttuiError as error:
        refusal = str(error)
    if refusal:
        app.tell(refusal, title="control")


async def _load_config(app: AppBase) -> None:
    files = await _config_files(app)
    if files is not None:
        found = await asyncio.to_thread(config_view, files)
        app.state = replace(app.state, config=found)
        app.redraw()


async def _config_files(app: AppBase) -> ConfigTexts | None:
    """Return the configuration files, or None if a remote run does not send them."""
    if app.run_directory is not None:
        return await asyncio.to_thread(read_configs, app.run_directory)
    if isinstance(app.session, SupportsFetchConfigs):
        for _ in range(CONFIG_TRIES):
            try:
                return await app.session.fetch_configs()
            except EngineGone:
                await asyncio.sleep(CONFIG_RETRY_S)
            except FttuiError:  # an error here would close the app
                return None
    return None


async def _compare_runs(app: AppBase, chosen: list[RunListing]) -> None:
    marked = [item for item in chosen if item.host or item.summary.id != app.state.run_id]
    here = [item for item in marked if not item.host]
    if len(here) < len(marked):
        app.tell("runs of other machines cannot be compared; they are left out")
    elif not marked:
        key = key_of("runs.mark", app.state)
        app.tell(
            f"choose what to compare this run with: put the cursor on a run, or mark some ({key})"
        )
    most = MOST_RUNS - 1
    if len(here) > most:
        app.tell(f"this run is compared with the first {most} of {len(here)} marked runs")
    await _read_others(app, here[:most], len(marked))


async def _read_others(app: AppBase, chosen: list[RunListing], marked: int) -> None:
    """Read runs one after another; those read so far are shown meanwhile.

    A run that cannot be read is left out, and counted among the `marked` ones.
    """
    others: list[OtherRun] = []
    faults: list[str] = []
    opened = False
    for number, item in enumerate(chosen, 1):
        try:
            others.append(await read_other_run(Path(item.summary.path)))
        except (FttuiError, OSError) as error:
            faults.append(f"{item.summary.id}: {error}")
        left = len(chosen) - number
        if others and (not left or not opened or number % READ_AT_ONCE == 0):
            left_out = marked - len(others) - left
            app.state = replace(
                app.state, others=tuple(others), left_out=left_out, reading_runs=left
            )
            if not opened:
                app.go("compare")
                opened = True
            app.redraw()
    if faults:
        more = f" (and {len(faults) - 1} more)" if faults[1:] else ""
        app.tell(f"the run cannot be read: {faults[0]}{more}", title="compare")
