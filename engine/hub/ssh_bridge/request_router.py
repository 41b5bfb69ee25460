"""What a remote viewer asks: answered here where the run's folder knows, else by the hub."""

from __future__ import annotations

from ...protocol.codec import DecodeError, decode_client
from ...protocol.requests import (
    Accepted,
    AnyClientMessage,
    AnyHubMessage,
    FetchConfig,
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
    """Answers for one viewer."""

    def __init__(self, run: RunDirectory, hub: HubClient, why_read_only: str) -> None:
        self._run = run
        self._hub = hub
        self._why_read_only = why_read_only

    def answer(self, payload: bytes) -> AnyHubMessage | None:
        """The reply to a request; None when the hub will give it, or nobody can now."""
        try:
            message = decode_client(payload)
        except DecodeError as error:
            return Refused(ref=0, reason=f"not understood: {error}")
        match message:
            case FetchReport() | FetchConfig():
                return answer_from_folder(self._run, message)
            case Ping(ref=ref):
                return Pong(ref=ref)
            case SubmitCommand() | TakeControl() | ReleaseControl():
                if (refusal := self._why_not(message)) is not None:
                    return refusal
                self._hub.ask(message)
                return None
        return Refused(ref=message.ref, reason="a bridge sends the history by itself")

    def _why_not(self, message: AnyClientMessage) -> AnyHubMessage | None:
        reason = self._why_read_only or self._hub.refusal
        if not reason and not self._hub.engine_alive and not self._hub.connected:
            reason = f"no engine works on this run; go on with: fttui run --resume {self._run.id}"
            if isinstance(message, SubmitCommand):
                return self._decided(message) or _refusal(message, reason)
        return _refusal(message, reason) if reason else None

    def _decided(self, message: SubmitCommand) -> AnyHubMessage | None:
        """What a hub that is gone decided about a command."""
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
