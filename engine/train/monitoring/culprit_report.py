"""Adds the samples behind an anomaly to its report, when a search has found them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec

from ...protocol.culprit_text import CULPRITS_HEADING, culprit_lines
from ...protocol.events import CulpritsFound
from ...run.folder.open_folder import read_plain
from ...run.run_dir import SMALL_FILE_BYTES, RunDirectory

_HEADING = f"\n{CULPRITS_HEADING}\n"


class CulpritReports:
    """The sections about culprits, which a report that is written again keeps."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._found: dict[str, CulpritsFound] = {}

    def section(self, name: str) -> str:
        """Return the section of a report in Markdown; empty without a search."""
        event = self._found.get(name)
        return "" if event is None else "\n".join([_HEADING, *culprit_lines(event)]) + "\n"

    def whole(self, name: str, report: bytes) -> bytes:
        """Return a report in JSON with what a search has found, or unchanged without a search.

        Raises:
            msgspec.DecodeError: the report is not JSON.
        """
        event = self._found.get(name)
        if event is None:
            return report
        content = msgspec.json.decode(report, type=dict[str, msgspec.Raw])
        content["culprits"] = msgspec.Raw(msgspec.json.encode(event.search))
        return msgspec.json.format(msgspec.json.encode(content))

    def add(self, event: CulpritsFound, *, writes: bool) -> None:
        """Keep what a search has found, and add it to the report on disk if there is one.

        Args:
            event: the result of the search; it replaces that of an earlier one.
            writes: whether this rank writes reports.

        Raises:
            OSError: the report cannot be read or written.
        """
        name = event.anomaly
        self._found[name] = event
        if not writes:
            return
        page, content = (self._run.reports / f"{name}.{form}" for form in ("md", "json"))
        with suppress(FileNotFoundError, msgspec.DecodeError):
            text = _read(page).decode(errors="replace").split(_HEADING)[0]
            self._run.write(page, (text + self.section(name)).encode())
            self._run.write(content, self.whole(name, _read(content)))


def _read(file: Path) -> bytes:
    return read_plain(file, SMALL_FILE_BYTES)
