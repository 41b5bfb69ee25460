"""Finds and reads the anomaly reports in a run folder."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Literal

from ..errors import FttuiError
from .folder.open_folder import read_plain
from .run_dir import SMALL_FILE_BYTES, RunDirectory

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


def report_names(run: RunDirectory) -> list[str]:
    """Return the names of the reports of a run, oldest first."""
    files = []
    for file in run.reports.glob("*.md"):
        with suppress(OSError):
            files.append((file.lstat().st_mtime, file.stem))
    return [name for _, name in sorted(files)]


def read_report(run: RunDirectory, name: str, *, form: Literal["md", "json"] = "md") -> str:
    """Return the text of a report, as Markdown or as JSON.

    Raises:
        FttuiError: there is no such report; the text lists the existing ones.
    """
    stem = name.removesuffix(".md").removesuffix(".json")
    try:
        if _NAME.fullmatch(stem):
            file = run.reports / f"{stem}.{form}"
            return read_plain(file, SMALL_FILE_BYTES).decode(errors="replace")
    except OSError:
        pass
    known = ", ".join(report_names(run)) or "none"
    raise FttuiError(f"no report {name!r} in {run.reports}; existing reports: {known}")
