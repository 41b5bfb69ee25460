"""Lists the runs of this machine and of remote hosts, and reads another run for a comparison."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from fttui.engine.errors import FttuiError, NoSuchRun
from fttui.engine.run.configs import read_configs
from fttui.engine.run.known_runs import known_runs
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.run.run_index import RunSummary, list_runs, summarize

from ..view_model.app_state import AppState, OtherRun, fold
from ..view_model.connection_port import Delivery, HistoryArrived
from ..view_model.run_view import RunView
from .config_info import config_view
from .history_reader import batches
from .offline import OfflineSession
from .ssh.hosts import known_hosts
from .ssh.remote_host import RemoteHost

_AT_ONCE_BYTES = 64 * 2**20
"""Longest journal that one thread reads; several processes read longer ones."""


@dataclass(frozen=True)
class RunListing:
    """A run and the host it is on; the host is empty for this machine."""

    summary: RunSummary
    host: str = ""

    @property
    def key(self) -> str:
        """A key that is unique over all hosts."""
        return f"{self.host}:{self.summary.path}"


def local_runs(root: Path) -> list[RunListing]:
    """Return the readable runs in the runs folder and known ones elsewhere, newest first."""
    found = {s.path: s for s in list_runs(root) if not s.unreadable}
    for run in known_runs():
        if str(run.path) not in found and str(run.path.absolute()) not in found:
            try:
                summary = summarize(run)
            except (NoSuchRun, OSError):
                continue
            found.setdefault(summary.path, summary)
    newest_first = sorted(found.values(), key=lambda s: s.created, reverse=True)
    return [RunListing(summary) for summary in newest_first]


async def remote_runs() -> tuple[list[RunListing], list[str]]:
    """Return the runs of all hosts attached to before, and the error of each host that failed."""
    # Imported here, because the first screen is drawn without it.
    from .ssh.remote_runs import list_runs_on

    hosts = known_hosts()
    answers = await asyncio.gather(
        *(list_runs_on(RemoteHost(h, None), may_prompt=False) for h in hosts)
    )
    runs: list[RunListing] = []
    faults: list[str] = []
    for host, answer in zip(hosts, answers, strict=True):
        if isinstance(answer, FttuiError):
            faults.append(f"{host}: {answer}")
        else:
            runs += [RunListing(summary, host) for summary in answer]
    return runs, faults


async def read_other_run(path: Path) -> OtherRun:
    """Read a run of this machine up to the present end of its journal, for a comparison."""
    run = RunDirectory(path)
    view = await asyncio.to_thread(_read_at_once, run)
    if view is None:
        collected: list[Delivery] = []
        await OfflineSession(run).listen(collected.append)
        view = await asyncio.to_thread(lambda: fold(AppState(), collected, 0.0).run)
    config = await asyncio.to_thread(config_view, read_configs(run))
    return OtherRun(id=run.id, run=view, config=config)


def _read_at_once(run: RunDirectory) -> RunView | None:
    """Read a journal in this thread, which is fastest for a short one.

    None for a journal that is missing, long, or damaged.
    """
    try:
        size_bytes = run.journal.stat().st_size
    except FileNotFoundError:
        return None
    if size_bytes > _AT_ONCE_BYTES:
        return None
    read: list[Delivery] = []
    offset = 0
    for batch, place in batches(run.journal, size_bytes):
        read.append(HistoryArrived(batch))
        offset = place.offset
    return fold(AppState(), read, 0.0).run if offset >= size_bytes else None
