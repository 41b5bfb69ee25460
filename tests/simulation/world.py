"""Simulated time, processes that run one at a time, and a network that loses messages."""

from __future__ import annotations

import _thread
import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


class Killed(BaseException):
    """Ends the code of a process that was killed."""


@dataclass(order=True)
class _Due:
    at: float
    order: int
    action: Callable[[], None] = field(compare=False)


class World:
    """The queue of what happens next; all randomness comes from one seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self._queue: list[_Due] = []
        self._order = 0
        self.happened = 0

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do something later."""
        self._order += 1
        heapq.heappush(self._queue, _Due(self.now + delay_s, self._order, action))

    def run(self, until_s: float) -> None:
        """Let everything happen that is due before a time."""
        while self._queue and self._queue[0].at <= until_s:
            due = heapq.heappop(self._queue)
            self.now = max(self.now, due.at)
            self.happened += 1
            due.action()
        self.now = until_s


class Process:
    """Code that blocks, in a thread of its own; only one process or the world runs at a time."""

    current: Process | None = None

    def __init__(self, world: World, code: Callable[[], None]) -> None:
        self.world = world
        self.alive = True
        self.error: BaseException | None = None
        self._code = code
        self._go, self._back = _thread.allocate_lock(), _thread.allocate_lock()
        self._go.acquire()
        self._back.acquire()
        self._turn = 0
        """Number of wake-ups so far; an older one must not wake it again."""
        _thread.start_new_thread(self._run, ())
        world.after(0.0, self.wake(0))

    def _run(self) -> None:
        self._go.acquire()
        try:
            if self.alive:
                self._code()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 -- the schedule reports it
            self.error = error
        self.alive = False
        self._back.release()

    def wake(self, turn: int) -> Callable[[], None]:
        """Return what lets the process go on, once, from its `turn`-th stop."""

        def go() -> None:
            if self.alive and turn == self._turn:
                self._resume()

        return go

    def _resume(self) -> None:
        self._turn += 1
        before, Process.current = Process.current, self
        self._go.release()
        self._back.acquire()
        Process.current = before

    def stop(self) -> None:
        """Give the turn back; called in the process itself."""
        self._back.release()
        self._go.acquire()
        if not self.alive:
            raise Killed

    def sleep(self, seconds: float) -> None:
        """Go on after a time; called in the process itself."""
        self.world.after(seconds, self.wake(self._turn))
        self.stop()

    @property
    def turn(self) -> int:
        """The number of the stop that comes next."""
        return self._turn

    def kill(self) -> None:
        """End it where it stands; called from the world."""
        if self.alive:
            self.alive = False
            self._resume()


def sleep(seconds: float) -> None:
    """Let the running process sleep."""
    assert Process.current is not None
    Process.current.sleep(seconds)


@dataclass
class Network:
    """Delivers messages late, twice, in another order, or never."""

    world: World
    lost: float
    doubled: float
    slow_s: float

    def send(self, deliver: Callable[[Any], None], message: Any) -> None:
        """Send a message."""
        rng = self.world.rng
        copies = 0 if rng.random() < self.lost else 2 if rng.random() < self.doubled else 1
        for _ in range(copies):
            self.world.after(rng.random() ** 3 * self.slow_s, lambda: deliver(message))


class Meeting:
    """The collectives of the ranks of one engine: everybody comes, then everybody gets all."""

    def __init__(self, world: World, ranks: int) -> None:
        self.world = world
        self.ranks = ranks
        self._rounds: dict[int, dict[int, Any]] = {}
        self._waiting: dict[int, list[tuple[Process, int]]] = {}
        self._next = [0] * ranks

    def enter(self, rank: int, value: Any) -> int:
        """Give a value; return the number of the collective."""
        number, self._next[rank] = self._next[rank], self._next[rank] + 1
        given = self._rounds.setdefault(number, {})
        assert rank not in given
        given[rank] = value
        if len(given) == self.ranks:
            for process, turn in self._waiting.pop(number, []):
                delay_s = self.world.rng.random() * 0.01
                self.world.after(delay_s, process.wake(turn))
        return number

    def result(self, number: int) -> list[Any]:
        """Wait for the values of all ranks, by rank."""
        while len(self._rounds[number]) < self.ranks:
            process = Process.current
            assert process is not None
            self._waiting.setdefault(number, []).append((process, process.turn))
            process.stop()
        given = self._rounds[number]
        return [given[rank] for rank in range(self.ranks)]
