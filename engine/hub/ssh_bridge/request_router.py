"""Answers a remote viewer's requests from the run folder, or passes them on to the hub."""

from __future__ import annotations

from ...protocol.codec import DecodeError, decode_client
from ...protocol.requests import (
    Accepted,
    AnyClientMessage,
    AnyHubMessage,
    FetchConfig,
    FetchDataSample,
    FetchReport,
    Ping,
    Pong,
    Refused,
    Rejected,
    ReleaseControl,
    SubmitCommand,
    TakeControl,
)
from ...run.control_log import find_decision
from ...run.run_dir import RunDirectory
from ..file_requests import answer_from_folder
from .hub_client import HubClient


class RequestRouter:
    """Answers the requests of one remote viewer from the run folder, or passes them to the hub."""

    def __init__(self, run: RunDirectory, hub: HubClient, why_read_only: str) -> None:
        self._run = run
        self._hub = hub
        self._why_read_only = why_read_only

    def answer(self, payload: bytes) -> AnyHubMessage | None:
        """Return the reply to a request; None if the request was passed on to the hub."""
        try:
            message = decode_client(payload)
        except DecodeError as error:
            return Refused(ref=0, reason=f"invalid message: {error}")
        match message:
            case FetchReport() | FetchConfig() | FetchDataSample():
                return answer_from_folder(self._run, message)
            case Ping(ref=ref):
                return Pong(ref=ref)
            case SubmitCommand() | TakeControl() | ReleaseControl():
                if (refusal := self._why_not(message)) is not None:
                    return refusal
                self._hub.ask(message)
                return None
        return Refused(ref=message.ref, reason="the bridge sends the journal without a request")

    def _why_not(self, message: AnyClientMessage) -> AnyHubMessage | None:
        reason = self._why_read_only or self._hub.refusal
        if not reason and not self._hub.engine_alive and not self._hub.connected:
            reason = f"no engine is running for this run; {self._run.resume_hint}"
            if isinstance(message, SubmitCommand):
                return self._decided(message) or _refusal(message, reason)
        return _refusal(message, reason) if reason else None

    def _decided(self, message: SubmitCommand) -> AnyHubMessage | None:
        """Return the decision of an earlier hub on a command; None if there is none."""
        entry = find_decision(self._run, message.id)
        if entry is None:
            return None
        if entry.rejected is None:
            return Accepted(ref=message.ref, id=entry.id)
        return Rejected(ref=message.ref, id=entry.id, reason=entry.rejected)


def _refusal(message: AnyClientMessage, reason: str) -> AnyHubMessage:
    if isinstance(message, SubmitCommand):
        return Rejected(ref=message.ref, id=message.id, reason=reason)
    return Refused(ref=message.ref, reason=reason)
