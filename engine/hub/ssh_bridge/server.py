"""The server of the ssh bridge: greets a viewer, lists runs and opens the chosen one."""

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
    BridgeRequest,
    Failed,
    FrameKind,
    Greeting,
    ListRuns,
    Open,
    Received,
    Runs,
    decode_bridge_request,
)
from ...run.run_dir import RunDirectory
from ...run.run_index import choose_run, list_known_runs
from .session import BridgeSession
from .stream import FrameStream, ViewerGone

_IDLE_POLL_MS = 500
CHOOSING_S = 600.0
"""Seconds that a viewer may take to choose a run."""


@dataclass(frozen=True)
class BridgeOptions:
    """The options of `fttui bridge` on the remote host."""

    runs: Path
    """The folder of runs to offer besides the registered ones."""
    version: str
    run: str | None = None
    """The only run that may be opened; None for any."""
    read_only: bool = False


class BridgeServer:
    """Serves one viewer: lists the runs, then opens the run that the viewer chooses."""

    def __init__(self, stream: FrameStream, options: BridgeOptions) -> None:
        self._stream = stream
        self._options = options
        self._session: BridgeSession | None = None
        self._leave_at = time.monotonic() + CHOOSING_S

    def run(self) -> int:
        """Serve the viewer and return the exit code.

        The bridge ends if the viewer disconnects, is silent for 30 s, or chooses no run within 10
        minutes.
        """
        greeting = Greeting(
            version=self._options.version,
            host=socket.gethostname(),
            read_only=self._options.read_only,
        )
        self._stream.send_greeting(greeting)
        try:
            while self._turn():
                pass
        except ViewerGone:
            return 0
        except FttuiError as error:
            return self._fail(error.exit_code, str(error))
        except DecodeError as error:
            return self._fail(ProtocolMismatch.exit_code, f"invalid message: {error}")
        finally:
            if self._session is not None:
                self._session.close()
        return 0

    def _turn(self) -> bool:
        for channel, payload in self._stream.receive():
            if channel == FrameKind.TALK:
                self._handle(decode_bridge_request(payload))
            elif channel == FrameKind.HUB and self._session is not None:
                self._session.asked(payload)
        if self._session is not None:
            return self._session.turn()
        self._stream.flush()
        poller = zmq.Poller()
        self._stream.register(poller)
        poller.poll(_IDLE_POLL_MS)
        return time.monotonic() < self._leave_at

    def _handle(self, message: BridgeRequest) -> None:
        match message:
            case ListRuns():
                self._stream.send_message(Runs(table=msgspec.msgpack.encode(self._runs())))
            case Open() if self._session is None:
                self._session = self._served(message)
            case Received() if self._session is not None:
                self._session.received(message)
            case _:
                pass  # a second Open, or an acknowledgement before the first

    def _runs(self) -> list[object]:
        runs = list_known_runs(self._options.runs)
        only = self._options.run
        return [run for run in runs if only is None or run.id == only or run.path == only]

    def _served(self, asked: Open) -> BridgeSession:
        if asked.version[0] != PROTOCOL_VERSION[0]:
            theirs, ours = (".".join(map(str, v)) for v in (asked.version, PROTOCOL_VERSION))
            raise ProtocolMismatch(
                f"the viewer speaks protocol {theirs}, {socket.gethostname()} {ours}; "
                "install the same fttui on both machines"
            )
        run = self._chosen(asked.run)
        why = "the remote host allows this viewer only to watch" if self._options.read_only else ""
        why = why or ("this viewer is read-only" if asked.read_only else "")
        return BridgeSession(self._stream, run, asked, why)

    def _chosen(self, wanted: str | None) -> RunDirectory:
        only = self._options.run
        if only is not None:
            run = self._find(only)
            if wanted and not (run.id.startswith(wanted) or str(run.path) == wanted):
                raise NoSuchRun(f"this viewer may only open {run.id}, not {wanted!r}")
            return run
        return self._find(wanted)

    def _find(self, wanted: str | None) -> RunDirectory:
        if wanted and os.path.isabs(wanted) and (Path(wanted) / "run.json").is_file():
            return RunDirectory(Path(wanted))
        runs = list_known_runs(self._options.runs)
        host, live = socket.gethostname(), wanted is None
        return choose_run(runs, wanted, host, live=live, listing="fttui ls [USER@]HOST")

    def _fail(self, code: int, reason: str) -> int:
        try:
            self._stream.send_message(Failed(code=code, reason=reason))
            self._stream.drain()
        except ViewerGone:
            pass
        return code
