"""Finds and reads the anomaly reports in a run folder."""

from __future__ import annotations

import re

from ..errors import FttuiError
from .run_dir import RunDirectory

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


def report_names(run: RunDirectory) -> list[str]:
    """Return the names of the reports of a run, oldest first."""
    files = [(file.stat().st_mtime, file.stem) for file in run.reports.glob("*.md")]
    return [name for _, name in sorted(files)]


def read_report(run: RunDirectory, name: str) -> str:
    """Return the Markdown text of a report.

    Raises:
        FttuiError: there is no such report; the text lists the existing ones.
    """
    stem = name.removesuffix(".md").removesuffix(".json")
    try:
        if _NAME.fullmatch(stem):
            return (run.reports / f"{stem}.md").read_text(encoding="utf-8", errors="replace")
    except OSError:
        pass
    known = ", ".join(report_names(run)) or "none"
    raise FttuiError(f"no report {name!r} in {run.reports}; existing reports: {known}")
