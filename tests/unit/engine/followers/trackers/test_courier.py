"""Nothing is missing and nothing is there twice, wherever the process is killed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec
import pytest

from fttui.engine.followers.trackers.courier import BeginAgain, Courier
from fttui.engine.followers.trackers.deliveries import Delivery, RunFacts, Timeline
from fttui.engine.followers.trackers.ledger import Ledger
from fttui.engine.followers.trackers.story import Story
from tests.support.journaled import records

RUN = RunFacts(id="x-1", key="0" * 16, created=0.0, config={"name": "x"})


class Killed(BaseException):
    """The process died."""


@dataclass
class Server:
    """A tracker that keeps what it got, and dies or fails at a chosen operation."""

    says_how_far: bool
    """Whether it can tell what it holds; otherwise it cuts what was not noted, as a file is cut."""
    die_at: int = -1
    fail_at: frozenset[int] = frozenset()
    loses_the_end: bool = False
    """Whether what was not closed in order is lost in part when the process dies."""
    held: dict[int, list[Delivery]] = field(default_factory=dict)
    configured: list[int] = field(default_factory=list)
    closed: list[tuple[int, str]] = field(default_factory=list)
    operations: int = 0
    open: int = 0

    def operate(self) -> None:
        self.operations += 1
        if self.operations == self.die_at:
            if self.loses_the_end and self.open:
                held = self.held[self.open]
                del held[len(held) // 2 :]
            raise Killed
        if self.operations in self.fail_at:
            raise ConnectionError("no route")


class ServerSink:
    def __init__(self, server: Server) -> None:
        self.server = server
        self.timeline = 0

    def open(
        self, run: RunFacts, timeline: Timeline, attempt: int, noted: dict[str, int | str]
    ) -> int | None:
        self.server.operate()
        self.timeline = self.server.open = timeline.number
        if timeline.number not in self.server.held:
            self.server.held[timeline.number] = []
            self.server.configured.append(timeline.number)
        held = self.server.held[timeline.number]
        if self.server.says_how_far:
            return held[-1].seq if held else 0
        del held[int(noted.get("count", 0)) :]
        return None

    def write(self, deliveries: Sequence[Delivery]) -> dict[str, int | str]:
        held = self.server.held[self.timeline]
        for item in deliveries:
            self.server.operate()
            held.append(item)
        self.server.operate()
        return {"count": len(held)}

    def close(self, outcome: str) -> None:
        self.server.operate()
        self.server.open = 0
        self.server.closed.append((self.timeline, outcome))


@dataclass
class Disk:
    """The file of the ledger."""

    data: bytes = msgspec.json.encode(Ledger(tracker="t", shown="t"))
    server: Server | None = None

    def life(self, server: Server, batches: Sequence[int] = (3, 9, 100)) -> Courier:
        """One process: reads the journal in parts, from its beginning, until it ends or dies."""
        ledger = msgspec.json.decode(self.data, type=Ledger)

        def save() -> None:
            server.operate()
            self.data = msgspec.json.encode(ledger)
            server.operate()

        courier = Courier(RUN, ServerSink(server), ledger, save)
        self._read(courier, batches)
        return courier

    def _read(self, courier: Courier, batches: Sequence[int]) -> None:
        rest, at = records(), 0
        for size in batches:
            try:
                courier.deliver(rest[at : at + size])
            except BeginAgain:
                courier.restart()
                return self._read(courier, batches)
            at += size
        courier.conclude(engine_works=False)
        return None


def expected() -> dict[int, list[Delivery]]:
    story = Story()
    found: dict[int, list[Delivery]] = {1: [], 2: []}
    for record in records():
        if item := story.add(record):
            found[record.timeline].append(item)
    return found


def lives_until_done(server: Server, disk: Disk) -> int:
    for life in range(1, 50):
        try:
            disk.life(server)
        except Killed:
            continue
        return life
    raise AssertionError("it never ended")


def operations_of_one_life(says_how_far: bool) -> int:
    server = Server(says_how_far)
    Disk().life(server)
    assert server.held == expected()
    return server.operations


@pytest.mark.parametrize("says_how_far", [True, False], ids=["it says", "it is cut"])
def test_whatever_operation_it_dies_at_all_is_delivered_once(says_how_far: bool) -> None:
    count = operations_of_one_life(says_how_far)
    assert count > 20
    for die_at in range(1, count + 1):
        server, disk = Server(says_how_far, die_at=die_at), Disk()
        assert lives_until_done(server, disk) == 2, die_at
        assert server.held == expected(), die_at
        assert server.configured == [1, 2], die_at


def test_it_may_die_many_times() -> None:
    server, disk = Server(says_how_far=True), Disk()
    for _ in range(200):
        server.operations, server.die_at = 0, 4
        try:
            disk.life(server)
        except Killed:
            continue
        break
    server.die_at = -1
    disk.life(server)
    assert server.held == expected()


def retry(action: Callable[[], None], again: Callable[[], None]) -> int:
    for attempt in range(50):
        try:
            action()
        except ConnectionError:
            again()
            continue
        return attempt
    raise AssertionError("it never succeeded")


@pytest.mark.parametrize("says_how_far", [True, False], ids=["it says", "it is cut"])
def test_an_outage_is_made_good(says_how_far: bool) -> None:
    for start in range(1, operations_of_one_life(says_how_far)):
        server = Server(says_how_far, fail_at=frozenset(range(start, start + 7)))
        ledger = Ledger(tracker="t", shown="t")
        courier = Courier(RUN, ServerSink(server), ledger, lambda: None)
        assert retry(partial(courier.deliver, records()), courier.restart) < 8
        assert server.held == expected(), start


def test_what_the_tracker_has_lost_with_the_process_is_delivered_again() -> None:
    for die_at in range(1, operations_of_one_life(says_how_far=True) + 1):
        server, disk = Server(says_how_far=True, loses_the_end=True, die_at=die_at), Disk()
        assert lives_until_done(server, disk) == 2, die_at
        assert server.held == expected(), die_at


def test_a_second_delivery_of_an_ended_run_opens_nothing() -> None:
    server, disk = Server(says_how_far=False), Disk()
    disk.life(server)
    before = server.closed[:]
    assert before == [(1, "finished"), (2, "finished")]
    again = disk.life(server)
    assert again.delivered == 0
    assert server.held == expected()


def test_what_a_failed_batch_left_out_is_not_counted() -> None:
    ledger = Ledger(tracker="t", shown="t")

    class Counting(ServerSink):
        def write(self, deliveries: Sequence[Delivery]) -> dict[str, int | str]:
            ledger.count("too long")
            return super().write(deliveries)

    server = Server(says_how_far=True, fail_at=frozenset({3}))
    courier = Courier(RUN, Counting(server), ledger, lambda: None)
    retry(lambda: courier.deliver(records()), courier.restart)
    batches = 2
    assert courier.left_out == [("too long", batches)]
