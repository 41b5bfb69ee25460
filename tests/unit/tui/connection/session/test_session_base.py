"""Commands, control, requests and delivery of a session, over a transport without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import pytest

from fttui.engine.errors import EngineGone, FttuiError
from fttui.engine.protocol.codec import encode
from fttui.engine.protocol.commands import AddNote, Pause
from fttui.engine.protocol.events import LogEmitted, Record
from fttui.engine.protocol.requests import (
    Accepted,
    AnyHubMessage,
    Beat,
    ClientMessage,
    ControlGiven,
    FetchReport,
    Pong,
    Refused,
    Rejected,
    ReleaseControl,
    ReportText,
    SubmitCommand,
    TakeControl,
    Welcome,
)
from fttui.engine.run.processes.identity import boot_seconds
from fttui.tui.connection.session.session_base import EXPIRES_S, SessionBase
from fttui.tui.view_model.connection_port import (
    BeatArrived,
    CommandAnswered,
    Delivery,
    Link,
    LinkChanged,
    RecordsArrived,
)

Reply = Callable[[ClientMessage], AnyHubMessage | None]


class FakeTransport:
    """Keeps what is sent; replies one turn of the loop later, by `reply`."""

    peer = "the hub"
    reply_timeout_s = 30.0

    def __init__(self) -> None:
        self.ready = True
        self.clock_offset_s = 0.0
        self.boot = "b"
        self.boot_offset_s = 0.0
        self.sent: list[ClientMessage] = []
        self.final: CommandAnswered | None = None
        self.reply: Reply = lambda _: None
        self.closed = asyncio.Event()
        self._session: SessionBase | None = None

    async def run(self, session: SessionBase) -> None:
        self._session = session
        await self.closed.wait()

    def send(self, message: ClientMessage) -> None:
        self.sent.append(message)
        reply = self.reply(message)
        if reply is not None and self._session is not None:
            asyncio.get_running_loop().call_soon(self._session.on_reply, reply)

    def final_answer(self, command_id: str) -> CommandAnswered | None:
        return None if self.final is None else CommandAnswered(command_id, False, self.final.reason)

    async def close(self) -> None:
        self.closed.set()

    def commands(self) -> list[str]:
        return [message.id for message in self.sent if isinstance(message, SubmitCommand)]


class Listening:
    """A session that listens over a fake transport, and everything it delivered."""

    def __init__(self, *, read_only: bool = False, one_shot: bool = False) -> None:
        self.transport = FakeTransport()
        self.now = 100.0
        self.session = SessionBase(
            self.transport,
            run_id="run",
            read_only=read_only,
            one_shot=one_shot,
            clock=lambda: 1_000.0,
            monotonic=lambda: self.now,
        )
        self.delivered: list[Delivery] = []
        self.task = asyncio.create_task(self.session.listen(self.delivered.append))

    def answers(self) -> list[CommandAnswered]:
        return [d for d in self.delivered if isinstance(d, CommandAnswered)]


@pytest.fixture
async def listening() -> Listening:
    started = Listening()
    await asyncio.sleep(0)
    return started


def payload(seq: int) -> bytes:
    event = LogEmitted(level="info", text="x")
    return encode(Record(seq=seq, time=0.0, step=0, timeline=1, event=event))


def welcome(controller: str | None = None) -> Welcome:
    return Welcome(
        ref=-1, version=(1, 0), run="run", incarnation=1, last_seq=0, controller=controller
    )


def beat(controller: str | None) -> Beat:
    return Beat(time=0.0, last_seq=0, engine_alive=True, controller_viewer=controller)


def control(message: ClientMessage) -> AnyHubMessage | None:
    return (
        ControlGiven(ref=message.ref, controller="me") if isinstance(message, TakeControl) else None
    )


# commands


async def test_a_command_is_sent_once_and_answered_once(listening: Listening) -> None:
    session, transport = listening.session, listening.transport
    id_ = session.submit(Pause(), reason="r", if_generation=7)
    session.submit(AddNote(text="x"))
    sent = transport.sent[0]
    assert isinstance(sent, SubmitCommand)
    left_s = (sent.expires_boot_s or 0.0) - boot_seconds()
    assert EXPIRES_S - 5 < left_s <= EXPIRES_S
    assert msgspec.structs.replace(sent, expires_boot_s=None) == SubmitCommand(
        ref=0, id=id_, command=Pause(), viewer=session.viewer, issuer=session.issuer,
        reason="r", expires_at=1_000.0 + EXPIRES_S, if_generation=7, boot="b",
    )  # fmt: skip
    assert len(transport.sent) == 2, "the first one is not sent again by the second"
    session.on_reply(Accepted(ref=0, id=id_))
    session.on_reply(Accepted(ref=0, id=id_))
    session.on_reply(Rejected(ref=0, id=id_, reason="no"))
    assert listening.answers() == [CommandAnswered(id=id_, accepted=True)]


async def test_commands_expire_by_the_clock_of_the_runs_machine(listening: Listening) -> None:
    listening.transport.clock_offset_s = -40.0
    listening.transport.boot_offset_s = 5_000.0
    listening.session.submit(Pause())
    [message] = listening.transport.sent
    assert isinstance(message, SubmitCommand)
    assert message.expires_at == 1_000.0 - 40.0 + EXPIRES_S
    left_s = (message.expires_boot_s or 0.0) - boot_seconds() - 5_000.0
    assert EXPIRES_S - 5 < left_s <= EXPIRES_S


async def test_pending_commands_are_sent_again_under_their_id_after_a_lost_connection(
    listening: Listening,
) -> None:
    session, transport = listening.session, listening.transport
    first = session.submit(Pause())
    transport.ready = False
    session.correlator.connection_lost()
    second = session.submit(AddNote(text="while down"))
    session.send_commands()
    assert transport.commands() == [first], "nothing is sent while there is no connection"
    transport.ready = True
    session.on_reply(welcome())
    assert transport.commands() == [first, first, second]
    session.on_reply(Rejected(ref=0, id=first, reason="late"))
    session.on_reply(welcome())
    assert transport.commands() == [first, first, second, second]
    assert listening.answers() == [CommandAnswered(id=first, accepted=False, reason="late")]


async def test_only_overdue_commands_are_repeated(listening: Listening) -> None:
    session, transport = listening.session, listening.transport
    old = session.submit(Pause())
    listening.now += 1.5
    new = session.submit(AddNote(text="x"))
    listening.now += 1.5
    session.send_commands(unanswered_s=3.0)
    assert transport.commands() == [old, new, old]
    listening.now += 1.5
    session.send_commands(unanswered_s=3.0)
    assert transport.commands() == [old, new, old, new]


async def test_a_command_that_no_hub_will_take_is_answered_after_its_id_is_known(
    listening: Listening,
) -> None:
    listening.transport.final = CommandAnswered("", accepted=False, reason="ended")
    id_ = listening.session.submit(Pause())
    assert listening.answers() == []
    await asyncio.sleep(0)
    assert listening.answers() == [CommandAnswered(id_, accepted=False, reason="ended")]
    assert listening.transport.sent == []


async def test_all_pending_commands_can_be_answered_at_the_end(listening: Listening) -> None:
    kept, done = listening.session.submit(Pause()), listening.session.submit(Pause())
    listening.session.answer_commands(
        lambda id_: CommandAnswered(id_, accepted=True) if id_ == done else None
    )
    assert listening.answers() == [CommandAnswered(done, accepted=True)]
    listening.session.answer_commands(lambda id_: CommandAnswered(id_, accepted=False))
    assert listening.answers()[1:] == [CommandAnswered(kept, accepted=False)]


async def test_commands_of_a_script_do_not_make_it_the_controller() -> None:
    listening = Listening(one_shot=True)
    await asyncio.sleep(0)
    listening.session.submit(Pause())
    [message] = listening.transport.sent
    assert isinstance(message, SubmitCommand)
    assert message.one_shot


# control


async def test_control_is_restored_at_a_new_hub_if_nobody_took_it(listening: Listening) -> None:
    session, transport = listening.session, listening.transport
    transport.reply = control
    assert await session.take_control() is None
    transport.sent.clear()
    session.on_reply(welcome(controller="bob@box"))
    assert transport.sent == []
    session.on_beat(beat(None), after_welcome=False)
    session.on_reply(welcome())
    [again] = transport.sent
    assert isinstance(again, TakeControl)
    assert again.if_free
    assert (again.viewer, again.issuer) == (session.viewer, session.issuer)


@pytest.mark.parametrize(
    ("controller", "after_welcome", "restored"),
    [("other", False, False), ("other", True, False), (None, True, False), (None, False, True)],
)
async def test_a_heartbeat_tells_who_has_control(
    listening: Listening, controller: str | None, after_welcome: bool, restored: bool
) -> None:
    session, transport = listening.session, listening.transport
    session.on_beat(beat(session.viewer), after_welcome=False)
    session.on_beat(beat(controller), after_welcome=after_welcome)
    session.on_reply(welcome())
    assert bool(transport.sent) is restored
    assert len([d for d in listening.delivered if isinstance(d, BeatArrived)]) == 2


async def test_released_control_is_not_restored(listening: Listening) -> None:
    session, transport = listening.session, listening.transport
    transport.reply = lambda m: Pong(ref=m.ref) if isinstance(m, ReleaseControl) else control(m)
    await session.take_control()
    await session.release_control()
    transport.sent.clear()
    session.on_reply(welcome())
    assert transport.sent == []


async def test_refused_control_is_told_and_not_held(listening: Listening) -> None:
    session, transport = listening.session, listening.transport
    transport.reply = lambda message: Refused(ref=message.ref, reason="read-only")
    assert await session.take_control() == "read-only"
    transport.sent.clear()
    session.on_reply(welcome())
    assert transport.sent == []


async def test_a_late_greeting_sends_nothing_over_a_connection_that_is_not_ready(
    listening: Listening,
) -> None:
    session, transport = listening.session, listening.transport
    session.on_beat(beat(session.viewer), after_welcome=True)
    transport.ready = False
    session.submit(Pause())
    session.on_reply(welcome())
    assert transport.sent == []


@pytest.mark.parametrize(
    ("read_only", "one_shot", "releases"),
    [(False, False, True), (True, False, False), (False, True, False)],
)
async def test_only_who_may_have_control_releases_it_at_the_end(
    read_only: bool, one_shot: bool, releases: bool
) -> None:
    listening = Listening(read_only=read_only, one_shot=one_shot)
    await asyncio.sleep(0)
    listening.transport.reply = lambda message: Pong(ref=message.ref)
    await listening.session.close()
    await asyncio.wait_for(listening.task, 10)
    sent = [type(message) for message in listening.transport.sent]
    assert sent == ([ReleaseControl] if releases else [])


async def test_a_hub_that_does_not_answer_does_not_hold_up_the_end(
    listening: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fttui.tui.connection.session.session_base.LEAVE_S", 0.0)
    await asyncio.wait_for(listening.session.close(), 10)
    assert listening.transport.closed.is_set()


# requests


async def test_a_report_is_fetched_or_refused(listening: Listening) -> None:
    listening.transport.reply = lambda m: (
        ReportText(ref=m.ref, report="r1", markdown="# r1")
        if isinstance(m, FetchReport) and m.report == "r1"
        else Refused(ref=m.ref, reason="no report 'r2'")
    )
    assert await listening.session.fetch_report("r1") == "# r1"
    with pytest.raises(FttuiError, match="no report 'r2'"):
        await listening.session.fetch_report("r2")


async def test_requests_without_a_connection_fail_at_once(listening: Listening) -> None:
    listening.transport.ready = False
    with pytest.raises(EngineGone, match="no connection to the hub now"):
        await listening.session.fetch_report("r1")
    assert "no connection" in (await listening.session.take_control() or "")
    await listening.session.release_control()
    assert listening.transport.sent == []


async def test_requests_without_a_reply_end_with_the_name_of_the_other_side(
    listening: Listening,
) -> None:
    listening.transport.reply_timeout_s = 0.0
    with pytest.raises(EngineGone, match="the hub did not answer within 0 s"):
        await listening.session.fetch_report("r1")
    lost = asyncio.create_task(listening.session.fetch_report("r1"))
    listening.transport.reply_timeout_s = 30.0
    await asyncio.sleep(0)
    listening.session.correlator.connection_lost()
    with pytest.raises(EngineGone, match="the connection was lost"):
        await lost


async def test_open_requests_are_repeated_at_a_new_hub(listening: Listening) -> None:
    report = asyncio.create_task(listening.session.fetch_report("r1"))
    await asyncio.sleep(0)
    listening.session.on_reply(welcome())
    first, second = listening.transport.sent
    assert first == second
    listening.session.on_reply(ReportText(ref=first.ref, report="r1", markdown="# r1"))
    assert await report == "# r1"


# delivery


async def test_records_are_delivered_in_order_without_a_gap_or_a_double(
    listening: Listening,
) -> None:
    feed = listening.session.feed
    feed.live([payload(1), payload(3)])
    assert feed.merger.gap
    feed.history([payload(1), payload(2)])
    feed.live([payload(3), payload(4)])
    records = [d.records for d in listening.delivered if isinstance(d, RecordsArrived)]
    assert [record.seq for batch in records for record in batch] == [1, 2, 3, 4]
    assert feed.last_seq == 4
    crc = feed.last_crc
    feed.history([])
    assert feed.last_crc == crc, "nothing new, so still that of record 4"


async def test_the_link_is_delivered_when_it_or_its_reason_changes(listening: Listening) -> None:
    feed = listening.session.feed
    assert not feed.was_live
    for link, detail in [
        (Link.LIVE, ""), (Link.LIVE, ""), (Link.LOST, "a"), (Link.LOST, "a"), (Link.LOST, "b"),
    ]:  # fmt: skip
        feed.set_link(link, detail)
    links = [(d.link, d.detail) for d in listening.delivered if isinstance(d, LinkChanged)]
    expected = [(Link.LIVE, ""), (Link.LOST, "a"), (Link.LOST, "b")]
    assert links == [(Link.CONNECTING, ""), *expected]
    assert feed.was_live
