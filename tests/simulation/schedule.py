"""One schedule: what happens under a seed, and what must hold at its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from fttui.engine.protocol.codec import decode_record, peek_seq
from fttui.engine.protocol.commands import AnyCommand, Pause, parse_command
from fttui.engine.protocol.events import (
    CommandApplied,
    CommandFailed,
    RunEnded,
    StateChanged,
    StepFinished,
)
from fttui.engine.protocol.requests import Accepted
from fttui.engine.protocol.settings import RunSettings
from fttui.engine.protocol.states import RunState
from fttui.engine.run.journal_summary import summarize_journal

from .actors import STEPS, Disk, Hub, Rank, Saved, Viewer, advanced, without_files
from .world import Meeting, Network, World

_COMMANDS = (
    "lr scale 0.5", "lr scale 2", "lr reset", "clip 0.5", "pause", "resume", "run 2", "checkpoint",
    "rollback last", "note x", "policy nonfinite halt", "pause", "resume",
)  # fmt: skip
_BUSY_S = 8.0
"""Simulated seconds in which commands are sent and processes killed."""
_LOSSY_S = 60.0
"""Simulated time from which the network loses nothing any more."""
_QUIET_S = 160.0
"""Simulated time by which everything has ended."""


class Broken(AssertionError):
    """Something that must hold does not."""


def require(condition: object, what: str) -> None:
    """Raise unless it holds."""
    if not condition:
        raise Broken(what)


class Schedule:
    """Engine, hub and viewers of one run."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        rng = self.world.rng
        self.disk = Disk()
        self.network = Network(
            self.world, rng.choice((0.0, 0.05, 0.3)), 0.2, rng.choice((0.1, 3.0))
        )
        self.ranks: list[Rank] = []
        self.witnesses: list[list[Rank]] = []
        self.world_size = rng.choice((1, 1, 2, 3))
        self.hub = Hub(self.world, self.disk, self.network, self.engine_alive)
        self.viewers = [Viewer(self.world, self.hub, self.network, name) for name in ("ann", "bob")]
        self.start_engine()
        self._plan()

    def engine_alive(self) -> bool:
        """Whether an engine works on the run."""
        return any(rank.process.alive for rank in self.ranks)

    def start_engine(self) -> None:
        """Start all ranks from the newest checkpoint, unless the run has ended."""
        if summarize_journal(self.disk.journal).status.exit_code is not None:
            return
        first = Saved("the beginning", 0, 1, 0, RunSettings())
        saved = self.disk.checkpoints[-1] if self.disk.checkpoints else first
        meeting = Meeting(self.world, self.world_size)
        seqs = [self.disk.rung if rank == 0 else 0 for rank in range(self.world_size)]
        self.ranks = [
            Rank(self.world, self.disk, meeting, rank, seqs[rank], saved)
            for rank in range(self.world_size)
        ]
        self.witnesses.append(self.ranks)

    def kill_engine(self) -> None:
        """Kill all ranks; they start again later."""
        if self.engine_alive():
            for rank in self.ranks:
                rank.process.kill()
            self.world.after(0.2 + self.world.rng.random() * 2.0, self.start_engine)

    def _plan(self) -> None:
        rng, after = self.world.rng, self.world.after
        for _ in range(rng.randint(1, 10)):
            command = parse_command(rng.choice(_COMMANDS).split())
            viewer = rng.choice(self.viewers)
            relative, take = rng.random() < 0.3, rng.random() < 0.4
            after(rng.random() * _BUSY_S, self._send(viewer, command, relative, take))
        for _ in range(rng.choice((0, 0, 1, 2))):
            after(rng.random() * _BUSY_S, self.kill_engine)
        for _ in range(rng.choice((0, 1, 2))):
            after(rng.random() * _BUSY_S, self.hub.kill)
        if rng.random() < 0.2:
            after(rng.random() * _BUSY_S, self._fill_disk)
        if rng.random() < 0.2:
            after(rng.random() * _BUSY_S, self._signal)
        # Nobody waits for ever: at last the run is told to go on, and then to stop.
        for at in (_BUSY_S + 5.0, _BUSY_S + 10.0, _BUSY_S + 15.0):
            after(at, self._send(self.viewers[0], parse_command(["resume"]), False, True))
        for at in (_BUSY_S + 20.0, _BUSY_S + 35.0, _BUSY_S + 60.0, _BUSY_S + 70.0):
            after(at, self._send(self.viewers[1], parse_command(["stop"]), False, True))

    def _send(
        self, viewer: Viewer, command: AnyCommand, relative: bool, take: bool
    ) -> Callable[[], None]:
        return lambda: viewer.send(command, relative=relative, take=take)

    def _fill_disk(self) -> None:
        self.hub.full_until = self.world.now + 3.0

    def _signal(self) -> None:
        for rank in self.ranks:
            rank.signals.count += 1

    def play(self) -> None:
        """Let it all happen, and check it."""
        while self.world.now < _QUIET_S and not self._over():
            self.world.run(self.world.now + 4.0)
            if self.world.now > _LOSSY_S:
                self.network.lost = 0.0
        try:
            self._check()
        finally:
            for ranks in self.witnesses:
                for rank in ranks:
                    rank.process.kill()

    def _over(self) -> bool:
        """Whether the run has ended, and everybody knows it."""
        return (
            self.world.now > _BUSY_S + 4.0
            and summarize_journal(self.disk.journal).status.exit_code is not None
            and all(len(v.seen) == len(self.disk.journal) for v in self.viewers)
            and not any(v.pending.ids() for v in self.viewers)
        )

    def _check(self) -> None:
        for ranks in self.witnesses:
            for rank in ranks:
                if rank.process.error is not None:
                    raise rank.process.error
        records = [decode_record(payload) for payload in self.disk.journal]
        events = [(r.step, r.event) for r in records if r is not None]
        ends = [event for _, event in events if isinstance(event, RunEnded)]
        require(len(ends) == 1, f"{len(ends)} ends")
        self._check_commands(events)
        self._check_pauses(events)
        self._check_steps(events)
        self._check_viewers()
        self._check_ranks()

    def _check_commands(self, events: Sequence[tuple[int, object]]) -> None:
        told = Counter(
            event.id for _, event in events if isinstance(event, CommandApplied | CommandFailed)
        )
        stored = Counter(entry.id for entry in self.disk.control)
        accepted = {entry.id for entry in self.disk.control if entry.rejected is None}
        require(all(n == 1 for n in stored.values()), "a command is stored twice")
        for viewer in self.viewers:
            require(not viewer.pending.ids(), f"without an answer: {viewer.pending.ids()}")
            for id_, answer in viewer.answers.items():
                if id_ in viewer.unjournaled or id_ in self.disk.unrecorded:
                    continue  # the answer says that it was not recorded
                if isinstance(answer, Accepted):
                    require(id_ in accepted, f"{id_} was acknowledged and is not stored")
                    require(told[id_] == 1, f"{id_} has {told[id_]} outcomes")
                else:
                    require(told[id_] == 0, f"{id_} was refused and has an outcome")
        seqs = [entry.seq for entry in self.disk.control]
        require(seqs == list(range(1, len(seqs) + 1)), "a gap in the control journal")

    def _check_pauses(self, events: Sequence[tuple[int, object]]) -> None:
        """A pause that is reported as applied has held training."""
        for index, (_, event) in enumerate(events):
            if isinstance(event, CommandApplied) and isinstance(event.applied, Pause):
                states = [e.state for _, e in events[: index + 2] if isinstance(e, StateChanged)]
                require(states[-1] is RunState.PAUSED, f"{event.id} was applied and held nothing")

    def _check_steps(self, events: Sequence[tuple[int, object]]) -> None:
        counter, expected = 1, {}
        for step in range(STEPS):
            counter = advanced(counter, step * 2)
            expected[step + 1] = float(counter)
        for step, event in events:
            if isinstance(event, StepFinished):
                require(event.loss == expected[step], f"step {step} has another loss")
        finished = any(isinstance(e, RunEnded) and e.state is RunState.FINISHED for _, e in events)
        last = max((step for step, e in events if isinstance(e, StepFinished)), default=0)
        require(not finished or last == STEPS, "finished without its last step")

    def _check_viewers(self) -> None:
        for viewer in self.viewers:
            seqs = [peek_seq(payload) for payload in viewer.seen]
            require(seqs == list(range(1, len(seqs) + 1)), f"{viewer.name} has a gap or a double")
            require(viewer.seen == self.disk.journal, f"{viewer.name} saw {len(seqs)} records")

    def _check_ranks(self) -> None:
        for ranks in self.witnesses:
            shortest = min(len(rank.witness) for rank in ranks)
            for rank in ranks[1:]:
                same = rank.witness[:shortest] == ranks[0].witness[:shortest]
                require(same, "ranks differ in which command took effect at which step")


def play(seed: int) -> int:
    """Play one schedule; return how many things happened in it."""
    with without_files():
        schedule = Schedule(seed)
        schedule.play()
    return schedule.world.happened
