"""Accept or reject submitted commands, and count the generation of the run's settings.

An id is decided once: the decision is stored in the control journal before it is answered, and a
repeated submission gets the stored answer, also after a restart of the hub. The module uses no
sockets and reads no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

import msgspec

from ..config.sections.outward import AgentsConfig
from ..protocol.codec import DecodeError, decode_record
from ..protocol.command_args import CommandError
from ..protocol.commands import (
    START_AGAIN,
    AddNote,
    AnyCommand,
    Confirm,
    Propose,
    Stop,
    command_words,
    describe_command,
    parse_command,
    spec_of,
    why_illegal,
)
from ..protocol.events import CommandApplied
from ..protocol.requests import Accepted, Rejected, SubmitCommand
from ..protocol.states import RunState
from ..run.control_log import ControlEntry
from .agent_limits import AgentLimits
from .proposals import Proposals

_LEAST_FREE_BYTES = 4096
_APPLIED_TAG = CommandApplied.__name__.encode()


class ControlLog(Protocol):
    """The control journal, which stores the decisions."""

    entries: list[ControlEntry]

    @property
    def last_seq(self) -> int:
        """Sequence number of the newest entry; 0 when there is none."""

    def append(self, entry: ControlEntry) -> None:
        """Store a decision durably in the control journal.

        Raises:
            OSError: the entry is not stored.
        """


@dataclass(frozen=True)
class ClockReading:
    """The present time by two clocks: that of the day, and that since the start of the machine."""

    time: float
    """Unix seconds."""
    boot_s: float = 0.0
    """Seconds since the machine started."""
    boot: str = ""
    """The boot id of the machine; empty if it has none."""

    def expired_s(self, message: SubmitCommand | ControlEntry) -> float | None:
        """Return the seconds since a command expired, negative before; None if it never expires."""
        if message.expires_boot_s is not None and message.boot and message.boot == self.boot:
            return self.boot_s - message.expires_boot_s
        return None if message.expires_at is None else self.time - message.expires_at


class Controller(msgspec.Struct, frozen=True, kw_only=True):
    """The viewer that has control; others must take it over before their commands are accepted."""

    viewer: str
    issuer: str


class Intake:
    """Accepts or rejects every submitted command, once for each id."""

    def __init__(
        self,
        log: ControlLog,
        next_step: str = START_AGAIN,
        agents: AgentsConfig = AgentsConfig(),  # noqa: B008 - frozen
    ) -> None:
        """Read the decisions that were made before.

        Args:
            log: the control journal.
            next_step: what a reader of a refusal can do when the run has ended.
            agents: the limits of agents.
        """
        self._log = log
        self._next_step = next_step
        self._limits = AgentLimits(agents)
        self._proposals = Proposals(log.entries)
        self._decided = {entry.id: entry for entry in log.entries}
        self._accepted = sum(_changes_settings(entry) for entry in log.entries)
        """Number of accepted commands that change settings."""
        self._unjournaled: dict[str, str] = {}
        """Id of an obeyed stop that could not be stored → why it could not."""
        self._recorded = 0
        """Number of changes of settings counted from the journal of the run."""
        self.controller: Controller | None = None

    @property
    def generation(self) -> int:
        """A count that rises with each change of the settings, from control journal and journal.

        Both are on disk, so a restarted hub that has read them counts the same.
        """
        return self._accepted + self._recorded

    def limit_agents(self, agents: AgentsConfig) -> None:
        """Keep agents within these limits from now on, such as those of a resumed run."""
        self._limits = AgentLimits(agents)

    def observe(self, payload: bytes) -> None:
        """Advance the settings generation if an encoded record reports a change of settings.

        A setting that was counted when its command was accepted is not counted again. A rollback
        or recovery is, because its values are known only when it is done.
        """
        if _APPLIED_TAG not in payload:
            return
        try:
            record = decode_record(payload)
        except DecodeError:
            return
        if record is not None and isinstance(record.event, CommandApplied):
            self._recorded += self._is_news(record.event)

    def _is_news(self, event: CommandApplied) -> bool:
        spec = event.spec
        if spec is None:
            return True  # a newer version's command; assume that it changes settings
        # The value of an accepted setting was counted with its submission. A recovery's values are
        # known when it is done, and the guard and the autopilot submit nothing.
        announced = spec.kind == "setting" and event.id in self._decided
        return spec.versioned and not announced

    def submit(
        self,
        message: SubmitCommand,
        *,
        state: RunState,
        now: ClockReading,
        refused: Mapping[str, str] = MappingProxyType({}),
        unknown: Callable[[AnyCommand], str | None] = lambda command: None,
        disk_free_bytes: int | None = None,
    ) -> Accepted | Rejected:
        """Accept or reject a command.

        A repeated id gets its first decision again, unless it comes with another command, which is
        rejected.

        Args:
            message: the submitted command.
            state: state of the run.
            now: present time.
            refused: commands that the trainer of the run cannot carry out, verb to reason.
            unknown: returns why a command names something that the run lacks; None if it does not.
            disk_free_bytes: free space for the journals of the run; None if it is not known.
        """
        known = self._decided.get(message.id)
        if known is None:
            meant = self._proposals.confirmed(message)
            refusal = self._proposals.why_not(message, now.expired_s)
            refusal = refusal or self._limits.why_not(message, self._log.entries, now.time)
            refusal = refusal or _why_unrecorded(meant, disk_free_bytes)
            refusal = refusal or self._why_not(meant, state, now)
            refusal = refusal or _why_impossible(meant, refused)
            refusal = refusal or unknown(_acted(meant.command))
            name = self._proposals.name_of(message)
            entry = self._store(self._decide(meant, now, refusal, name))
            self._proposals.note(entry)
            if entry.rejected is None:
                self._give_control(message)
            return self._answer(entry, message.ref)
        if not _same_command(known, message):
            reason = (
                f"id {message.id} was used for another command: {describe_command(known.command)}"
            )
            return Rejected(ref=message.ref, id=message.id, reason=reason)
        return self._answer(known, message.ref)

    def _give_control(self, message: SubmitCommand) -> None:
        """Give control to the viewer of an accepted command.

        A script that sends a single command gets no control; if the command took control from
        another viewer, nobody has control afterwards. An agent and a proposal get none either.
        """
        if message.agent is not None or isinstance(message.command, Propose):
            return
        if not message.one_shot:
            self.take(message.viewer, message.issuer)
        elif message.take:
            self.controller = None

    def _decide(
        self, message: SubmitCommand, now: ClockReading, refusal: str | None, proposal: str
    ) -> ControlEntry:
        proposes = isinstance(message.command, Propose)
        lasts_s = 60 * self._limits.config.proposal_minutes
        entry = ControlEntry(
            seq=self._log.last_seq + 1,
            time=now.time,
            id=message.id,
            command=message.command,
            issuer=message.issuer,
            reason=message.reason,
            expires_at=now.time + lasts_s if proposes else message.expires_at,
            expires_boot_s=now.boot_s + lasts_s if proposes else message.expires_boot_s,
            boot=now.boot if proposes else message.boot,
            rejected=refusal,
            leash=self._limits.leash(message),
            proposal=proposal,
        )
        generation = self.generation + _changes_settings(entry)
        return msgspec.structs.replace(entry, generation=generation)

    def _why_not(self, message: SubmitCommand, state: RunState, now: ClockReading) -> str | None:
        holder = self.controller
        if (expired_s := now.expired_s(message)) is not None and expired_s > 0:
            return f"the command expired {expired_s:.1f} s before it arrived"
        harmless = isinstance(message.command, Propose) or _only_reports(message.command)
        if holder is not None and (holder.viewer == message.viewer or harmless):
            holder = None  # nobody else's control is in the way
        if holder is not None and message.agent is not None:
            return f"{holder.issuer} has control; an agent can only propose commands meanwhile"
        if holder is not None and not message.take:
            return f"{holder.issuer} has control; take it over with: fttui ctl --take COMMAND"
        if message.if_generation not in (None, self.generation):
            return (
                f"the settings have changed since the command was made (generation "
                f"{message.if_generation}, now {self.generation}); look at them and send it again"
            )
        return _why_malformed(message.command) or why_illegal(
            message.command, state, self._next_step
        )

    def _store(self, entry: ControlEntry) -> ControlEntry:
        try:
            self._log.append(entry)
            self._accepted += _changes_settings(entry)
        except OSError as error:
            if entry.rejected is None and isinstance(entry.command, Stop) and not entry.leash:
                self._unjournaled[entry.id] = (
                    f"accepted, but not recorded: the control journal cannot be written ({error})"
                )
                self._decided[entry.id] = entry
                return entry
            # Not final if this hub dies now: the next one cannot know of it.
            disk = f"disk: the control journal cannot be written ({error})"
            reason = f"{entry.rejected}; not recorded, {disk}" if entry.rejected else disk
            entry = msgspec.structs.replace(entry, rejected=reason)
        self._decided[entry.id] = entry
        return entry

    def _answer(self, entry: ControlEntry, ref: int) -> Accepted | Rejected:
        if entry.rejected is None:
            unjournaled = self._unjournaled.get(entry.id, "")
            return Accepted(ref=ref, id=entry.id, unjournaled=unjournaled)
        return Rejected(ref=ref, id=entry.id, reason=entry.rejected)

    def take(self, viewer: str, issuer: str) -> None:
        """Make a viewer the controller in place of any other."""
        self.controller = Controller(viewer=viewer, issuer=issuer)

    def release(self, viewer: str) -> None:
        """Take control from a viewer that gives it up or is gone; other viewers keep it."""
        if self.controller is not None and self.controller.viewer == viewer:
            self.controller = None


def _only_reports(command: AnyCommand) -> bool:
    """Whether a command reports what was measured beside the training, which changes nothing."""
    return isinstance(command, AddNote) and command.result is not None


def _acted(command: AnyCommand) -> AnyCommand:
    """Return the proposed command of a proposal; any other command unchanged."""
    return command.command if isinstance(command, Propose) else command


def _same_command(known: ControlEntry, message: SubmitCommand) -> bool:
    """Whether a decision was made on the command of a message, or on one that it confirms."""
    confirms = isinstance(message.command, Confirm) and known.proposal == message.command.proposal
    return confirms or known.command == message.command


def _changes_settings(entry: ControlEntry) -> bool:
    return entry.rejected is None and spec_of(entry.command).versioned


def _why_unrecorded(message: SubmitCommand, disk_free_bytes: int | None) -> str | None:
    """Return why the engine could not record what a command does; None if it can, and for a stop.

    A stop is obeyed even if it cannot be recorded.
    """
    if isinstance(message.command, Stop) and message.agent is None:
        return None
    if disk_free_bytes is None or disk_free_bytes >= _LEAST_FREE_BYTES:
        return None
    return (
        f"disk: {disk_free_bytes:,} bytes are free where the run folder is, too few to record what "
        "the command does; free some disk space, and send it again"
    )


def _why_impossible(message: SubmitCommand, refused: Mapping[str, str]) -> str | None:
    reason = refused.get(spec_of(_acted(message.command)).verb)
    return None if reason is None else f"not possible in this run: {reason}"


def _why_malformed(command: AnyCommand) -> str | None:
    """Return why a command cannot be typed, such as one with a NaN factor; None if it can.

    A script can send such a command, because it builds the struct without the parser.
    """
    try:
        parse_command(command_words(command))
    except CommandError as error:
        return str(error)
    return None
