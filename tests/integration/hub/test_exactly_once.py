"""Exactly once, from the viewer's request to the engine's setting, through every kind of loss.

The hub's own server, its real control journal on disk and the real journal of an engine double
that applies settings as the engine does; only ZeroMQ is left out. A few examples by default;
`FTTUI_LONG=1` runs ten thousand.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import time
from pathlib import Path

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from fttui.engine.core.settings import SettingsContext, apply_setting
from fttui.engine.hub.server import Hub
from fttui.engine.protocol.codec import PROTOCOL_VERSION, decode_record, encode
from fttui.engine.protocol.commands import (
    SettingCommand,
    describe_command,
    parse_command,
    why_illegal,
)
from fttui.engine.protocol.events import (
    CommandApplied,
    CommandFailed,
    Record,
    RunStarted,
    StateChanged,
)
from fttui.engine.protocol.requests import (
    Accepted,
    AnyClientMessage,
    AnyHubMessage,
    Hello,
    Rejected,
    ReleaseControl,
    SubmitCommand,
    TakeControl,
)
from fttui.engine.protocol.settings import RunSettings
from fttui.engine.protocol.states import RunState
from fttui.engine.run.control_log import ControlEntry, ControlReader, ControlWriter
from fttui.engine.run.journal import FrameReader, FrameWriter
from fttui.engine.run.processes.marks import EngineMark, ProcessMark, write_mark
from fttui.engine.run.run_dir import RunDirectory
from tests.support.engine_double import make_run, step_event
from tests.support.loopback import Loopback

TEXTS = (
    "lr scale 0.5",
    "lr scale 2",
    "lr reset",
    "clip 0.25",
    "clip off",
    "pause",
    "resume",
    "policy nonfinite halt",
    "note seen",
    "checkpoint",
)
IDLE_S = 600.0
_decoder = msgspec.msgpack.Decoder(ControlEntry)


class Engine:
    """One incarnation: reads the control journal, journals outcomes, keeps the settings on disk."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._journal = FrameWriter(run.journal, run.journal_lock)
        told = [r for r in map(decode_record, self._journal.recovered) if r is not None]
        self._seq = len(told)
        self.step = told[-1].step if told else 0
        self._control = ControlReader(run)
        self.desired = self._load()
        me = ProcessMark.current()
        write_mark(run.engine, EngineMark(pid=me.pid, started=me.started))
        self._start()
        self._refuse_left_over({getattr(r.event, "id", "") for r in told if _is_outcome(r)})

    def _start(self) -> None:
        started = RunStarted(
            name="once",
            incarnation=1,
            pid=os.getpid(),
            host="here",
            world_size=1,
            task="sft",
            model="none",
            total_steps=0,
            micro_batch_size=1,
            accumulation=1,
        )
        self._tell(started)
        self._enter()

    def _refuse_left_over(self, answered: set[str]) -> None:
        """As the engine does: what an earlier incarnation did not answer is answered now."""
        for entry in self._control.take(self._control.waiting()):
            if entry.id not in answered:
                text = describe_command(entry.command)
                self._tell(CommandFailed(id=entry.id, command=text, reason="the engine ended"))

    def _load(self) -> RunSettings:
        file = self._run.path / "desired.json"
        if not file.exists():
            return RunSettings()
        stored = msgspec.json.decode(file.read_bytes(), type=RunSettings)
        return msgspec.structs.replace(stored, paused=False)

    def _tell(self, event: object) -> None:
        self._seq += 1
        record = Record(seq=self._seq, time=time.time(), step=self.step, timeline=1, event=event)  # type: ignore[arg-type]  # any event
        self._journal.append(encode(record))

    def _enter(self) -> None:
        self._tell(StateChanged(state=RunState.PAUSED if self.desired.paused else RunState.RUNNING))

    def turn(self) -> None:
        """A boundary: everything new takes effect, then a step unless paused."""
        for entry in self._control.take(self._control.waiting()):
            self._apply(entry)
        if not self.desired.paused:
            self.step += 1
            self._tell(step_event(self.step))

    def _apply(self, entry: ControlEntry) -> None:
        old = new = ""
        if isinstance(entry.command, SettingCommand):
            context = SettingsContext(self.step, 1e-4, lambda _: None)
            change = apply_setting(self.desired, entry.command, context)
            moved = change.settings.paused != self.desired.paused
            self.desired, old, new = change.settings, change.old, change.new
            (self._run.path / "desired.json").write_bytes(msgspec.json.encode(self.desired))
            if moved:
                self._enter()
        text = describe_command(entry.command)
        self._tell(CommandApplied(id=entry.id, command=text, old=old, new=new))

    def die(self) -> None:
        """End without a word; what a dead process holds is given back."""
        self._journal.close()


def _is_outcome(record: Record) -> bool:
    return isinstance(record.event, CommandApplied | CommandFailed)


class ExactlyOnce(RuleBasedStateMachine):
    """Viewers, a hub and an engine that come and go; the model is a list and a settings value."""

    viewers = Bundle("viewers")
    messages = Bundle("messages")

    def __init__(self) -> None:
        super().__init__()
        memory = Path("/dev/shm")
        place = memory if memory.is_dir() and os.access(memory, os.W_OK) else None
        self.folder = Path(tempfile.mkdtemp(prefix="once-", dir=place))
        self.run = make_run(self.folder)
        self.numbers = itertools.count(1)
        self.controller: str | None = None
        self.accepted: list[SubmitCommand] = []
        self.answers: dict[str, bool] = {}
        self.bodies: dict[str, object] = {}
        self.generation = 0
        self.engine = Engine(self.run)
        self.start_hub()

    def start_hub(self) -> None:
        self.sockets = Loopback()
        self.control = ControlWriter(self.run)
        self.hub = Hub(self.run, self.control, self.sockets, IDLE_S)

    def ask(self, viewer: str, message: AnyClientMessage) -> AnyHubMessage:
        connection = viewer.encode()
        self.sockets.answers.pop(connection, None)
        self.sockets.waiting.append([connection, encode(message)])
        self.hub.turn()
        (answer,) = self.sockets.answers[connection]
        return answer

    @rule(target=viewers)
    def attach(self) -> str:
        viewer = f"v{next(self.numbers)}"
        self.ask(viewer, Hello(ref=1, version=PROTOCOL_VERSION, viewer=viewer, issuer=viewer))
        return viewer

    @rule(viewer=viewers)
    def detach(self, viewer: str) -> None:
        self.ask(viewer, ReleaseControl(ref=1, viewer=viewer))
        if self.controller == viewer:
            self.controller = None

    @rule(viewer=viewers)
    def take_control(self, viewer: str) -> None:
        self.ask(viewer, TakeControl(ref=1, viewer=viewer, issuer=viewer))
        self.controller = viewer

    @rule(
        target=messages,
        viewer=viewers,
        text=st.sampled_from(TEXTS),
        one_shot=st.booleans(),
        late=st.booleans(),
        guarded=st.booleans(),
    )
    def write(self, viewer: str, text: str, one_shot: bool, late: bool, guarded: bool) -> object:
        """A request is made now and sent whenever: before, after or between others."""
        return SubmitCommand(
            ref=1,
            id=f"c{next(self.numbers)}",
            command=parse_command(text),
            viewer=viewer,
            issuer=viewer,
            expires_at=time.time() + (-1.0 if late else 3600.0),
            if_generation=self.generation if guarded else None,
            one_shot=one_shot,
        )

    @rule(message=messages, connection=viewers)
    def deliver(self, message: SubmitCommand, connection: str) -> None:
        """A request arrives, for the first time or once more, over whatever connection."""
        known = self.answers.get(message.id)
        expected = self.predict(message) if known is None else known
        answer = self.ask(connection, message)
        assert isinstance(answer, Accepted | Rejected)
        assert isinstance(answer, Accepted) == expected, answer
        if known is None:
            self.answers[message.id] = expected
            self.bodies[message.id] = message.command
            if expected:
                self.accept(message)

    def predict(self, message: SubmitCommand) -> bool:
        state = RunState.PAUSED if self.engine.desired.paused else RunState.RUNNING
        return not (
            (message.expires_at or 0.0) < time.time()
            or self.controller not in (None, message.viewer)
            or message.if_generation not in (None, self.generation)
            or why_illegal(message.command, state)
        )

    def accept(self, message: SubmitCommand) -> None:
        self.accepted.append(message)
        words = describe_command(message.command).split()[0]
        self.generation += words in ("lr", "clip", "policy")
        if not message.one_shot:
            self.controller = message.viewer

    @rule(message=messages, viewer=viewers, text=st.sampled_from(TEXTS))
    def reuse_id(self, message: SubmitCommand, viewer: str, text: str) -> None:
        """The id of a decided request comes with another body."""
        other = parse_command(text)
        if self.bodies.get(message.id, other) == other:
            return
        answer = self.ask(viewer, msgspec.structs.replace(message, command=other))
        assert isinstance(answer, Rejected)
        assert "used for another command" in answer.reason

    @rule(torn=st.binary(max_size=40))
    def kill_hub(self, torn: bytes) -> None:
        """The hub dies, perhaps in the middle of an append that nobody was told of."""
        self.control.close()
        with open(self.run.control, "ab") as file:
            file.write(torn[:7])
        self.start_hub()
        self.controller = None

    @rule()
    def step(self) -> None:
        self.engine.turn()

    @rule()
    def restart_engine(self) -> None:
        self.engine.die()
        self.engine = Engine(self.run)

    @invariant()
    def journal_holds_what_was_accepted(self) -> None:
        entries = [_decoder.decode(payload) for payload in FrameReader(self.run.control)]
        kept = [(e.id, e.command) for e in entries if e.rejected is None]
        assert kept == [(m.id, m.command) for m in self.accepted]
        assert [e.seq for e in entries] == list(range(1, len(entries) + 1))

    @invariant()
    def effects_are_in_order_and_once(self) -> None:
        records = [decode_record(payload) for payload in FrameReader(self.run.journal)]
        told = [r.event.id for r in records if r and _is_outcome(r)]  # type: ignore[union-attr]  # outcomes have one
        assert told == [m.id for m in self.accepted][: len(told)]

    def teardown(self) -> None:
        self.engine.turn()
        records = [r for r in map(decode_record, FrameReader(self.run.journal)) if r]
        told = [r.event.id for r in records if _is_outcome(r)]  # type: ignore[union-attr]  # outcomes have one
        assert told == [m.id for m in self.accepted]
        assert [r.seq for r in records] == list(range(1, len(records) + 1))
        applied = {r.event.id for r in records if isinstance(r.event, CommandApplied)}
        assert self.engine.desired == self.replay(applied)
        self.engine.die()
        self.control.close()
        shutil.rmtree(self.folder)

    def replay(self, applied: set[str]) -> RunSettings:
        """The settings that the applied commands come to; a pause may have been dropped since."""
        desired = RunSettings()
        for message in self.accepted:
            if message.id in applied and isinstance(message.command, SettingCommand):
                context = SettingsContext(0, 1e-4, lambda _: None)
                desired = apply_setting(desired, message.command, context).settings
        return msgspec.structs.replace(desired, paused=self.engine.desired.paused)


LONG = bool(os.environ.get("FTTUI_LONG"))
TestExactlyOnce = ExactlyOnce.TestCase
TestExactlyOnce.settings = settings(
    max_examples=10_000 if LONG else 60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=not LONG,
)
