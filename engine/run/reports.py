"""Anomaly reports in a run's folder: written by the engine, read by viewers."""

from __future__ import annotations

import re

from ..errors import FttuiError
from .run_dir import RunDirectory

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


def report_names(run: RunDirectory) -> list[str]:
    """Names of the reports there are, oldest first."""
    files = [(file.stat().st_mtime, file.stem) for file in run.reports.glob("*.md")]
    return [name for _, name in sorted(files)]


def read_report(run: RunDirectory, name: str) -> str:
    """A report as Markdown.

    Raises:
        FttuiError: naming the reports there are.
    """
    stem = name.removesuffix(".md").removesuffix(".json")
    try:
        if _NAME.fullmatch(stem):
            return (run.reports / f"{stem}.md").read_text(encoding="utf-8", errors="replace")
    except OSError:
        pass
    known = ", ".join(report_names(run)) or "none"
    raise FttuiError(f"no report {name!r} in {run.reports}; there are: {known}")
