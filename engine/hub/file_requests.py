"""Answers viewer requests from the run folder, for the hub and for the ssh bridge."""

from __future__ import annotations

from ..errors import FttuiError
from ..protocol.requests import AnyHubMessage, FetchConfig, FetchReport, Refused, ReportText
from ..run.configs import read_configs
from ..run.reports import read_report
from ..run.run_dir import RunDirectory


def answer_from_folder(run: RunDirectory, message: FetchReport | FetchConfig) -> AnyHubMessage:
    """Return the reply to a request for a report or for the configuration."""
    if isinstance(message, FetchConfig):
        return read_configs(run, message.ref)
    try:
        text = read_report(run, message.report)
    except FttuiError as error:
        return Refused(ref=message.ref, reason=str(error))
    return ReportText(ref=message.ref, report=message.report, markdown=text)
