"""A remote viewer's first words: which runs are there, and which one it wants."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec
import zmq

from ...errors import FttuiError, NoSuchRun, ProtocolMismatch
from ...protocol.codec import PROTOCOL_VERSION, DecodeError
from ...protocol.ssh_protocol import (
    Failed,
    FrameKind,
    Greeting,
    ListRuns,
    Open,
    Received,
    Runs,
    ViewerTalk,
    decode_viewer_talk,
)
from ...run.run_dir import RunDirectory
from ...run.run_index import choose_run, list_known_runs
from .remote_session import RemoteViewer
from .stream import FrameStream, ViewerGone

_IDLE_POLL_MS = 500
CHOOSING_S = 600.0
"""A person may look at the list of runs for so long."""


@dataclass(frozen=True)
class BridgeTerms:
    """What the far side's command line allows."""

    runs: Path
    """Folder to look in besides the runs that are known of."""
    version: str
    run: str | None = None
    """The only run served."""
    read_only: bool = False


class BridgeServer:
    """Serves one viewer from its first word to its last."""

    def __init__(self, wire: FrameStream, terms: BridgeTerms) -> None:
        self._wire = wire
        self._terms = terms
        self._service: RemoteViewer | None = None
        self._leave_at = time.monotonic() + CHOOSING_S

    def run(self) -> int:
        """Serve until the viewer leaves; returns the exit code."""
        greeting = Greeting(
            version=self._terms.version,
            host=socket.gethostname(),
            read_only=self._terms.read_only,
        )
        self._wire.greet(greeting)
        try:
            while self._turn():
                pass
        except ViewerGone:
            return 0
        except FttuiError as error:
            return self._fail(error.exit_code, str(error))
        except DecodeError as error:
            return self._fail(ProtocolMismatch.exit_code, f"not understood: {error}")
        finally:
            if self._service is not None:
                self._service.close()
        return 0

    def _turn(self) -> bool:
        for channel, payload in self._wire.receive():
            if channel == FrameKind.TALK:
                self._hear(decode_viewer_talk(payload))
            elif channel == FrameKind.HUB and self._service is not None:
                self._service.asked(payload)
        if self._service is not None:
            return self._service.turn()
        self._wire.flush()
        poller = zmq.Poller()
        self._wire.register(poller)
        poller.poll(_IDLE_POLL_MS)
        return time.monotonic() < self._leave_at

    def _hear(self, message: ViewerTalk) -> None:
        match message:
            case ListRuns():
                self._wire.say(Runs(table=msgspec.msgpack.encode(self._runs())))
            case Open() if self._service is None:
                self._service = self._served(message)
            case Received() if self._service is not None:
                self._service.received(message)
            case _:
                pass  # a second Open, or an acknowledgement before the first

    def _runs(self) -> list[object]:
        runs = list_known_runs(self._terms.runs)
        only = self._terms.run
        return [run for run in runs if only is None or run.id == only or run.path == only]

    def _served(self, asked: Open) -> RemoteViewer:
        if asked.version[0] != PROTOCOL_VERSION[0]:
            theirs, ours = (".".join(map(str, v)) for v in (asked.version, PROTOCOL_VERSION))
            raise ProtocolMismatch(
                f"the viewer speaks protocol {theirs}, {socket.gethostname()} {ours}; "
                "install the same fttui on both machines"
            )
        run = self._chosen(asked.run)
        why = "the far side lets this viewer only watch" if self._terms.read_only else ""
        why = why or ("this viewer is read-only" if asked.read_only else "")
        return RemoteViewer(self._wire, run, asked, why)

    def _chosen(self, wanted: str | None) -> RunDirectory:
        only = self._terms.run
        if only is not None:
            run = self._find(only)
            if wanted and not (run.id.startswith(wanted) or str(run.path) == wanted):
                raise NoSuchRun(f"only {run.id} is shown to this viewer, not {wanted!r}")
            return run
        return self._find(wanted)

    def _find(self, wanted: str | None) -> RunDirectory:
        if wanted and os.path.isabs(wanted) and (Path(wanted) / "run.json").is_file():
            return RunDirectory(Path(wanted))
        runs = list_known_runs(self._terms.runs)
        return choose_run(runs, wanted, socket.gethostname(), live=wanted is None)

    def _fail(self, code: int, reason: str) -> int:
        try:
            self._wire.say(Failed(code=code, reason=reason))
            self._wire.drain()
        except ViewerGone:
            pass
        return code
