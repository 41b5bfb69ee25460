"""Answers viewer requests from the run folder, for the hub and for the ssh bridge."""

from __future__ import annotations

from ..errors import FttuiError
from ..protocol.requests import (
    AnyHubMessage,
    DataSampleRecords,
    FetchConfig,
    FetchDataSample,
    FetchReport,
    Refused,
    ReportText,
)
from ..run.configs import read_configs
from ..run.data_sample import read_sample
from ..run.reports import read_report
from ..run.run_dir import RunDirectory

FolderRequest = FetchReport | FetchConfig | FetchDataSample
"""The requests that are answered from the run folder."""


def answer_from_folder(run: RunDirectory, message: FolderRequest) -> AnyHubMessage:
    """Return the reply to a request for the configuration, the data sample or a report.

    It is `Refused` only if the run has no such report; missing texts and records are empty.
    """
    if isinstance(message, FetchConfig):
        return read_configs(run, message.ref)
    if isinstance(message, FetchDataSample):
        return DataSampleRecords(ref=message.ref, records=read_sample(run))
    try:
        text = read_report(run, message.report)
    except FttuiError as error:
        return Refused(ref=message.ref, reason=str(error))
    return ReportText(ref=message.ref, report=message.report, markdown=text)
