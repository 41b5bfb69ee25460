"""Engine, hub and viewers: the real control, intake and merge code around a counter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from fttui.engine.core.settings import after_rollback
from fttui.engine.hub.intake import ClockReading, Intake
from fttui.engine.hub.live_status import LiveStatus
from fttui.engine.protocol.codec import encode
from fttui.engine.protocol.commands import (
    AddNote,
    AnyCommand,
    OneShotCommand,
    Rollback,
    SaveCheckpoint,
    Stop,
)
from fttui.engine.protocol.events import (
    AnyEvent,
    CheckpointSaved,
    Record,
    RolledBack,
    RunEnded,
    RunStarted,
    StepFinished,
)
from fttui.engine.protocol.requests import Accepted, Rejected, SubmitCommand
from fttui.engine.protocol.settings import RunSettings
from fttui.engine.protocol.states import RunState
from fttui.engine.run.control_log import ControlEntry
from fttui.engine.run.journal_summary import summarize_journal
from fttui.engine.run.run_status import EngineStatus
from fttui.engine.train.control import command_queue
from fttui.engine.train.control.command_scheduler import (
    CommandScheduler,
    Impossible,
    command_failed,
)
from fttui.engine.train.control.control_state import ControlState
from fttui.engine.train.control.unanswered import UnansweredCommands
from fttui.engine.train.distributed.agreement import PendingResult
from fttui.engine.train.event_log import EventLog
from fttui.engine.train.signals import StopSignals
from fttui.tui.connection.session.pending_commands import PendingCommands
from fttui.tui.connection.session.record_merger import RecordMerger

from .world import Meeting, Network, Process, World, sleep

STEPS = 8
ACCUMULATE = 2
MODULUS = 2**31 - 1


def advanced(counter: int, position: int) -> int:
    """The counter after a step that starts at a data position."""
    for batch in range(position, position + ACCUMULATE):
        counter = (counter * 48271 + batch) % MODULUS
    return counter


@dataclass
class Saved:
    """A checkpoint: all that a rank needs to continue."""

    name: str
    step: int
    counter: int
    position: int
    settings: RunSettings


@dataclass
class Disk:
    """What outlives every process."""

    journal: list[bytes] = field(default_factory=list)
    control: list[ControlEntry] = field(default_factory=list)
    rung: int = 0
    """The doorbell."""
    checkpoints: list[Saved] = field(default_factory=list)
    desired: RunSettings = field(default_factory=RunSettings)
    unrecorded: set[str] = field(default_factory=set)
    """Commands whose decision could not be stored; another hub does not know that it was made."""
    doorstep: Callable[[], None] = lambda: None
    """Called when the journal has grown, in place of looking at it all the time."""


class Journal:
    """In place of the journal writer."""

    def __init__(self, world: World, disk: Disk) -> None:
        self._world, self._disk = world, disk
        self.folder_losses = 0

    def emit(self, event: AnyEvent, *, step: int, timeline: int) -> None:
        """Append a record."""
        record = Record(
            seq=len(self._disk.journal) + 1,
            time=self._world.now,
            step=step,
            timeline=timeline,
            event=event,
        )
        self._disk.journal.append(encode(record))
        self._disk.doorstep()

    def sync_all(self) -> None:
        """Nothing is lost with a process."""

    def close(self) -> None:
        """Nothing is open."""


class ControlFile:
    """In place of the control reader: what the engine sees of the control journal."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.seen_seq = 0

    def waiting(self) -> int:
        """The doorbell."""
        return self._disk.rung

    def take(self, up_to: int) -> list[ControlEntry]:
        """Unread accepted entries."""
        due = [e for e in self._disk.control if self.seen_seq < e.seq <= up_to]
        if due:
            self.seen_seq = due[-1].seq
        return [entry for entry in due if entry.rejected is None]


@contextmanager
def without_files() -> Iterator[None]:
    """Let command queues read the simulated disk."""
    module: Any = command_queue
    before = module.ControlReader
    module.ControlReader = ControlFile
    try:
        yield
    finally:
        module.ControlReader = before


class ControlJournal:
    """In place of the control writer: the hub's side."""

    def __init__(self, disk: Disk, breaks: Callable[[], bool]) -> None:
        self._disk = disk
        self._breaks = breaks
        self.entries = list(disk.control)

    @property
    def last_seq(self) -> int:
        """The newest number."""
        return self.entries[-1].seq if self.entries else 0

    def append(self, entry: ControlEntry) -> None:
        """Store and announce an entry, unless the disk is full."""
        if self._breaks():
            self._disk.unrecorded.add(entry.id)
            raise OSError(28, "No space left on device")
        self._disk.control.append(entry)
        self.entries.append(entry)
        self._disk.rung = entry.seq


class RankTalk:
    """Agreement of one rank with the others over simulated messages."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self._meeting = meeting
        self.rank = rank
        self.world_size = meeting.ranks
        self.alone = meeting.ranks == 1

    def start_max(self, values: list[int]) -> PendingResult[list[int]]:
        """Element-wise maximum."""
        number = self._meeting.enter(self.rank, values)
        return PendingResult(
            lambda: [max(v) for v in zip(*self._meeting.result(number), strict=True)]
        )

    def max(self, values: list[int]) -> list[int]:
        """Element-wise maximum."""
        return self.start_max(values).read()

    def share(self, data: bytes) -> bytes:
        """The bytes of rank 0."""
        found: bytes = self._meeting.result(self._meeting.enter(self.rank, data))[0]
        return found


class Rank:
    """One rank of one engine process: the loop that a trainer runs."""

    def __init__(
        self, world: World, disk: Disk, meeting: Meeting, rank: int, control_seq: int, start: Saved
    ) -> None:
        self.world, self.disk, self.rank = world, disk, rank
        self.signals = StopSignals(launched=False)
        self.counter, self.position = start.counter, start.position
        self._history = summarize_journal(disk.journal)
        self._control_seq = control_seq
        self._start = start
        self._meeting = meeting
        self.log = EventLog(
            Journal(world, disk) if rank == 0 else None,  # type: ignore[arg-type]  # in its place
            timeline=self._history.timeline,
        )
        self.witness: list[tuple[str, str, int]] = []
        self.log.listen(self._see)
        self._unanswered = UnansweredCommands(self._history.answered, self.log.record)
        self.log.listen(self._unanswered.observe)
        self._saved = {saved.name: saved for saved in disk.checkpoints}
        self._newest = start.name
        self._boundary = (0, 0, 0)
        self.process = Process(world, self.run)

    def _see(self, event: AnyEvent) -> None:
        kind = type(event).__name__
        if kind in ("CommandApplied", "CommandFailed"):
            self.witness.append((str(getattr(event, "id", "")), kind, self.log.step))

    def run(self) -> None:
        """Train from the newest checkpoint to the end."""
        if self.rank == 0:
            self.log.record(_started(self._history.status.incarnation + 1))
        talk = RankTalk(self._meeting, self.rank)
        queue = command_queue.CommandQueue(self.disk, talk, self.signals)  # type: ignore[arg-type]
        self.control = ControlState(
            self.disk.desired,
            self.log.position,
            norm_percentile=lambda _: None,
            store=self._store,
            clock=lambda: self.world.now,
        )
        for entry in queue.left_over(self._control_seq, self._history.answered):
            self.log.record(command_failed(entry, "the engine ended before it was applied"))
        self.witness.clear()  # rank 0 alone refuses what an earlier engine left
        self._resume()
        scheduler = CommandScheduler(
            queue, self.log, self.control, self, self, refuses={},
            clock=lambda: self.world.now, sleep=sleep,
        )  # fmt: skip
        while self.log.step < STEPS and scheduler.at_boundary(self):
            self._step(scheduler)
        if not self.control.ending:
            self._save()
        scheduler.refuse_rest("the run has ended")
        state = RunState.STOPPED if self.control.ending else RunState.FINISHED
        # As the engine's main does under the lock of decisions: the hub cannot decide meanwhile.
        if self.rank == 0:
            reader = ControlFile(self.disk)
            reader.take(self._control_seq)
            self._unanswered.conclude(
                reader.take(reader.waiting()), f"the run ended ({state.value})"
            )
        self.log.record(RunEnded(state=state, exit_code=0))

    def _store(self, settings: RunSettings) -> None:
        if self.rank == 0:
            self.disk.desired = settings

    def _resume(self) -> None:
        self.log.position.move_to(self._start.step, 1.0)
        if self._history.step > self._start.step:
            self.log.record(
                RolledBack(
                    checkpoint=self._start.name,
                    from_step=self._history.step,
                    to_step=self._start.step,
                    old_timeline=self._history.timeline,
                    new_timeline=self.log.open_timeline(),
                )
            )

    def _step(self, scheduler: CommandScheduler) -> None:
        start = self.position
        self.control.begin_step()
        for micro in range(ACCUMULATE):
            if micro and scheduler.interrupted():
                break
            self.position += 1
            sleep(0.05 + self.world.rng.random() * 0.2)
        if not self.control.dropped:
            scheduler.before_update()
        if not self.control.dropped:
            self.counter = advanced(self.counter, start)
            self.log.position.move_to(self.log.step + 1, 1.0)
            self.log.record(
                StepFinished(loss=float(self.counter), grad_norm=1.0, lr=1.0, step_s=0.1)
            )
        scheduler.after_step(self)

    def conclude(self) -> None:
        """Steps are journaled at once."""

    def while_held(self) -> None:
        """Nothing is measured."""

    def release(self) -> None:
        """No memory is held."""

    reclaim = release

    repeating = False

    @property
    def due(self) -> bool:
        """A checkpoint every second step."""
        return self.log.step % 2 == 0

    def plan(self) -> None:
        """Nothing is planned."""

    def scheduled(self) -> None:
        """Write the scheduled checkpoint."""
        if self.due:
            self._save()

    def prepare(self) -> None: ...

    def mark(self) -> None:
        """Remember the boundary."""
        self._boundary = (self.log.step, self.counter, self.position)

    def rewind(self) -> None:
        """Undo the dropped step."""
        step, self.counter, self.position = self._boundary
        self.log.position.move_to(step, 1.0)

    def perform(self, command: OneShotCommand, issuer: str) -> tuple[str, str]:
        """Carry out a one-shot command."""
        match command:
            case SaveCheckpoint() | Stop():
                self._save()
            case Rollback():
                self._roll_back(command)
            case AddNote():
                pass
            case _:
                raise Impossible(f"{issuer} asks for what a counter cannot do")
        return "", ""

    def _save(self) -> None:
        step = self.log.step
        name = f"step-{step}-{self.log.timeline}"
        saved = Saved(name, step, self.counter, self.position, self.control.settings)
        self._saved[name] = saved
        self._newest = name
        if self.rank == 0:
            sleep(self.world.rng.random() * 0.1)
            self.disk.checkpoints.append(saved)
            self.log.record(CheckpointSaved(name=name, size_bytes=1, seconds=0.0))

    def _roll_back(self, command: Rollback) -> None:
        wanted = self._newest if command.checkpoint == "last" else command.checkpoint
        if wanted not in self._saved:
            raise Impossible(f"no checkpoint {wanted}")
        saved, before, timeline = self._saved[wanted], self.log.step, self.log.timeline
        self.counter, self.position = saved.counter, saved.position
        self.log.position.move_to(saved.step, 1.0)
        self.control.change(after_rollback(self.control.settings, command))
        self.control.lift_halt()
        self.log.record(
            RolledBack(
                checkpoint=wanted, from_step=before, to_step=saved.step,
                old_timeline=timeline, new_timeline=self.log.open_timeline(),
            )
        )  # fmt: skip
        self.mark()


def _started(incarnation: int) -> RunStarted:
    return RunStarted(
        name="sim", incarnation=incarnation, pid=1, host="sim", world_size=1, task="sft",
        model="counter", total_steps=STEPS, micro_batch_size=1, accumulation=ACCUMULATE,
    )  # fmt: skip


class Hub:
    """The real intake and live status, which are lost when the hub is killed."""

    def __init__(
        self, world: World, disk: Disk, network: Network, engine_alive: Callable[[], bool]
    ) -> None:
        self.world, self.disk, self.network = world, disk, network
        self._engine_alive = engine_alive
        self.viewers: list[Viewer] = []
        self.full_until = 0.0
        self.up = False
        self.start()

    def start(self) -> None:
        """Begin with what is on disk."""
        journal = ControlJournal(self.disk, lambda: self.world.now < self.full_until)
        self.intake = Intake(journal)
        self.status = LiveStatus()
        self._read = 0
        self.up, self._due = True, False
        self.disk.doorstep = self._grown
        self._publish()

    def kill(self) -> None:
        """Forget everything; a new hub follows."""
        self.up = False
        self.world.after(0.1 + self.world.rng.random(), self.start)

    def _grown(self) -> None:
        if not self._due:
            self._due = True
            self.world.after(0.05, self._look)

    def _look(self) -> None:
        self._due = False
        if self.up:
            self._publish()

    def _publish(self) -> None:
        for payload in self.disk.journal[self._read :]:
            self.status.add(payload)
            self.intake.observe(payload)
            for viewer in self.viewers:
                self.network.send(viewer.on_live, payload)
        self._read = len(self.disk.journal)

    def receive(self, message: tuple[Viewer, SubmitCommand]) -> None:
        """Decide on a command."""
        if not self.up:
            return
        viewer, command = message
        self._publish()
        alive = self._engine_alive()
        self.status.update_engine(EngineStatus(1, self.status.incarnation, alive=alive))
        now = ClockReading(self.world.now, self.world.now, "boot")
        reply = self.intake.submit(command, state=self.status.state, now=now)
        if isinstance(reply, Accepted) and reply.unjournaled:
            viewer.told_unjournaled(command.id)
        self.network.send(viewer.on_reply, reply)

    def history(self, message: tuple[Viewer, int]) -> None:
        """Answer with a piece of the journal."""
        if self.up:
            viewer, after = message
            self.network.send(viewer.on_history, self.disk.journal[after : after + 20])


class Viewer:
    """The real merging of records and the real resending of commands."""

    def __init__(self, world: World, hub: Hub, network: Network, name: str) -> None:
        self.world, self.hub, self.network, self.name = world, hub, network, name
        self.merger = RecordMerger()
        self.pending = PendingCommands()
        self.seen: list[bytes] = []
        self.answers: dict[str, Accepted | Rejected] = {}
        self.unjournaled: set[str] = set()
        self._sent = 0
        hub.viewers.append(self)
        world.after(0.1, self._tick)

    def send(self, command: AnyCommand, *, relative: bool, take: bool) -> None:
        """Submit a command."""
        self._sent += 1
        message = SubmitCommand(
            ref=0, id=f"{self.name}-{self._sent}", command=command, viewer=self.name,
            issuer=self.name, expires_boot_s=self.world.now + 30.0, boot="boot", take=take,
            if_generation=self.hub.intake.generation if relative else None,
            one_shot=self.world.rng.random() < 0.5,
        )  # fmt: skip
        self.pending.add(message)
        self._send_due()

    def _send_due(self) -> None:
        for message in self.pending.due(self.world.now, 2.0):
            self.network.send(self.hub.receive, (self, message))

    def _tick(self) -> None:
        self._send_due()
        if len(self.seen) < len(self.hub.disk.journal):
            self.network.send(self.hub.history, (self, self.merger.last_seq))
        self.world.after(0.5, self._tick)

    def on_live(self, payload: bytes) -> None:
        """A record of the subscription."""
        self.seen += self.merger.live([payload])

    def on_history(self, payloads: list[bytes]) -> None:
        """Records that were asked for."""
        self.seen += self.merger.history(payloads)

    def on_reply(self, reply: Accepted | Rejected) -> None:
        """The answer to a command; further copies are the same."""
        known = self.answers.setdefault(reply.id, reply)
        stored = reply.id not in self.hub.disk.unrecorded
        assert not stored or type(known) is type(reply), f"two answers: {known}, {reply}"
        self.pending.answered(reply.id)

    def told_unjournaled(self, id_: str) -> None:
        """A stop is obeyed without being recorded."""
        self.unjournaled.add(id_)
