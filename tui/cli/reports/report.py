"""`report`: print the diagnosis of an incident, or the report of one of its alarms."""

from __future__ import annotations

import argparse
import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from fttui.engine.errors import FttuiError
from fttui.engine.run.reports import read_report, report_names
from fttui.engine.run.run_dir import RunDirectory

from ..ls import has_ended
from ..options import Commands, add_run, chosen_run, say

if TYPE_CHECKING:
    from ...view_model.incidents.incident import Incident
    from ...view_model.run_view import RunView


def add_commands(commands: Commands) -> None:
    """Register the subcommand `report` of `fttui`."""
    report = commands.add_parser("report", help="print the report of an incident or an anomaly")
    add_run(report)
    report.add_argument(
        "id",
        metavar="ID",
        nargs="?",
        help="an incident or an anomaly; default: the most severe incident, an open one first",
    )
    report.add_argument(
        "--json", action="store_true", help="print the anomaly's report as JSON, with all evidence"
    )
    report.set_defaults(handler=_report)


def _report(options: argparse.Namespace) -> int:
    run = chosen_run(options, live=False)
    view = _read(run)
    incident = _chosen(view, options.id)
    names = report_names(run)
    if incident is None and not options.id and not names:
        so_far = "" if has_ended(run) else " so far"
        raise FttuiError(f"{run.id} has no anomaly report: no anomaly was detected{so_far}")
    if options.json:
        name = incident.main.event.report if incident and not options.id else options.id
        say(read_report(run, name or names[-1], form="json"))
    elif incident is not None:
        say(_diagnosis(run, view, incident))
    else:
        say(read_report(run, options.id or names[-1]))
    return 0


def _read(run: RunDirectory) -> RunView:
    from ...connection.run_list import read_other_run  # deferred: numpy takes 0.1 s

    return asyncio.run(read_other_run(run.path)).run


def _chosen(view: RunView, wanted: str | None) -> Incident | None:
    """Return the incident to print; None if the id is that of a single alarm, or of none.

    An incident has the id of its first alarm. If it has no other alarm, the report of the alarm
    says all there is to say.
    """
    from ...view_model.incidents.incident import foremost_of  # deferred: numpy takes 0.1 s

    if not wanted:
        return foremost_of(view.incidents)
    found = next((i for i in view.incidents if i.id == wanted), None)
    return found if found is not None and len(found.alarms) > 1 else None


def _diagnosis(run: RunDirectory, view: RunView, incident: Incident) -> str:
    from ...dialogs.diagnosis import diagnose, to_markdown

    reports = {}
    for alarm in incident.alarms:
        with suppress(FttuiError):
            if alarm.event.report:
                reports[alarm.event.report] = read_report(run, alarm.event.report)
    return to_markdown(diagnose(view, incident, reports))
