"""The choice of a session for a run of this machine: over its hub or from its files."""

from __future__ import annotations

from fttui.engine.run.processes.marks import read_endpoint, read_engine
from fttui.engine.run.run_dir import RunDirectory

from ..view_model.connection_port import Session
from .local import LocalSession
from .offline import OfflineSession


def engine_runs(run: RunDirectory) -> bool:
    """Return whether an engine process on this machine works on the run."""
    engine = read_engine(run)
    return engine is not None and engine.alive


def open_session(run: RunDirectory, read_only: bool = False) -> Session:
    """Return a session over the hub while the engine or its hub runs, else one over the files.

    The session over the files is always read-only.
    """
    endpoint = read_endpoint(run)
    if engine_runs(run) or (endpoint is not None and endpoint.alive):
        return LocalSession(run, read_only=read_only)
    return OfflineSession(run)
