"""Requests that the run's folder answers, whether a hub is asked or a bridge."""

from __future__ import annotations

from ..errors import FttuiError
from ..protocol.requests import AnyHubMessage, FetchConfig, FetchReport, Refused, ReportText
from ..run.configs import read_configs
from ..run.reports import read_report
from ..run.run_dir import RunDirectory


def answer_from_folder(run: RunDirectory, message: FetchReport | FetchConfig) -> AnyHubMessage:
    """The reply."""
    if isinstance(message, FetchConfig):
        return read_configs(run, message.ref)
    try:
        text = read_report(run, message.report)
    except FttuiError as error:
        return Refused(ref=message.ref, reason=str(error))
    return ReportText(ref=message.ref, report=message.report, markdown=text)
