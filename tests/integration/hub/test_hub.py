"""The hub process itself, over real sockets."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import zmq

from fttui.engine.hub.launch import ensure_hub, launch_hub
from fttui.engine.protocol.codec import (
    BEAT_TOPIC,
    EVENT_TOPIC,
    PROTOCOL_VERSION,
    decode_beat,
    decode_hub,
    encode,
    unpack_history,
)
from fttui.engine.protocol.commands import Pause, ScaleLr
from fttui.engine.protocol.requests import (
    Accepted,
    AnyHubMessage,
    Beat,
    ClientMessage,
    ControlGiven,
    FetchHistory,
    FetchReport,
    Hello,
    HistoryChunk,
    Ping,
    Pong,
    Refused,
    Rejected,
    ReleaseControl,
    ReportText,
    SubmitCommand,
    TakeControl,
    Welcome,
)
from fttui.engine.protocol.states import RunState
from fttui.engine.run.journal import FrameReader
from fttui.engine.run.processes.marks import Endpoint, read_endpoint, write_mark
from fttui.engine.run.run_dir import RunDirectory
from tests.support.engine_double import EngineDouble, journal_payloads, make_run
from tests.support.waiting import until

from .conftest import StartRun, hub_up, kill_hub


class Viewer:
    """The plainest viewer: one SUB, one DEALER."""

    def __init__(self, endpoint: Endpoint, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.events = context.socket(zmq.SUB)
        self.events.subscribe(b"")
        self.events.connect(endpoint.events)
        self.requests = context.socket(zmq.DEALER)
        self.requests.connect(endpoint.requests)

    def ask_raw(self, *frames: bytes) -> AnyHubMessage:
        self.requests.send_multipart(frames)
        assert self.requests.poll(10_000), "no reply"
        return decode_hub(self.requests.recv())

    def ask(self, message: ClientMessage) -> AnyHubMessage:
        return self.ask_raw(encode(message))

    def hello(self, *, read_only: bool = False, major: int = PROTOCOL_VERSION[0]) -> AnyHubMessage:
        version = (major, 0)
        return self.ask(
            Hello(ref=1, version=version, viewer="ann", issuer="ann@pc", read_only=read_only)
        )

    def submit(self, id_: str, *, viewer: str = "ann") -> AnyHubMessage:
        return self.ask(
            SubmitCommand(ref=2, id=id_, command=Pause(), viewer=viewer, issuer=f"{viewer}@pc")
        )

    def beat(self) -> Beat:
        while self.events.poll(10_000):
            topic, payload = self.events.recv_multipart()
            if topic == BEAT_TOPIC:
                return decode_beat(payload)
        raise AssertionError("no beat")


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.linger = 0
    yield context
    context.destroy(linger=0)


@pytest.fixture
def engine(runs: Path) -> EngineDouble:
    """An engine in this process, already running."""
    engine = EngineDouble(make_run(runs))
    engine.start()
    return engine


@pytest.fixture
def viewer(engine: EngineDouble, context: zmq.Context[zmq.Socket[bytes]]) -> Viewer:
    viewer = Viewer(ensure_hub(engine.run, 20), context)
    assert isinstance(viewer.hello(), Welcome)
    return viewer


def test_records_are_published_as_the_journal_has_them(
    engine: EngineDouble, viewer: Viewer
) -> None:
    viewer.beat()  # the subscription is in force
    engine.train(3)
    seen: list[bytes] = []
    while len(seen) < 3:
        assert viewer.events.poll(10_000)
        topic, payload = viewer.events.recv_multipart()
        if topic == EVENT_TOPIC:
            seen.append(payload)
    assert seen == journal_payloads(engine.run)[-3:]


def test_history_is_served_from_any_sequence_number(engine: EngineDouble, viewer: Viewer) -> None:
    engine.train(20)
    until(lambda: viewer.beat().last_seq == 22)
    chunk = viewer.ask(FetchHistory(ref=5, after_seq=15))
    assert isinstance(chunk, HistoryChunk)
    assert (chunk.ref, chunk.first_seq, chunk.last_seq, chunk.head_seq) == (5, 16, 22, 22)
    assert list(unpack_history(chunk.blob)) == journal_payloads(engine.run)[15:]


def test_an_accepted_command_is_on_disk_before_the_answer(
    engine: EngineDouble, viewer: Viewer
) -> None:
    assert viewer.submit("a") == Accepted(ref=2, id="a")
    assert len(list(FrameReader(engine.run.control))) == 1
    assert engine.control.waiting() == 1
    assert [e.id for e in engine.control.take(1)] == ["a"]


def test_answers_survive_a_killed_hub(
    engine: EngineDouble, viewer: Viewer, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    viewer.submit("a")
    kill_hub(engine.run, signal.SIGKILL)
    until(lambda: not hub_up(engine.run))
    again = Viewer(ensure_hub(engine.run, 20), context)
    again.hello()
    assert again.submit("a", viewer="bob") == Accepted(ref=2, id="a")
    assert len(list(FrameReader(engine.run.control))) == 1


def test_control_is_one_viewers_and_can_be_taken_visibly(
    engine: EngineDouble, viewer: Viewer
) -> None:
    viewer.submit("a")
    until(lambda: viewer.beat().controller_viewer == "ann")
    answer = viewer.submit("b", viewer="bob")
    assert isinstance(answer, Rejected)
    assert "ann@pc has control" in answer.reason
    taken = viewer.ask(TakeControl(ref=3, viewer="bob", issuer="bob@pc"))
    assert taken == ControlGiven(ref=3, controller="bob@pc")
    until(lambda: viewer.beat().controller == "bob@pc")
    freed = viewer.ask(ReleaseControl(ref=4, viewer="bob"))
    assert freed == ControlGiven(ref=4, controller=None)


def test_who_had_control_gets_it_back_only_while_nobody_else_took_it(
    engine: EngineDouble, viewer: Viewer
) -> None:
    viewer.ask(TakeControl(ref=1, viewer="bob", issuer="bob@pc"))
    late = viewer.ask(TakeControl(ref=2, viewer="ann", issuer="ann@pc", if_free=True))
    assert late == ControlGiven(ref=2, controller="bob@pc")
    viewer.ask(ReleaseControl(ref=3, viewer="bob"))
    again = viewer.ask(TakeControl(ref=4, viewer="ann", issuer="ann@pc", if_free=True))
    assert again == ControlGiven(ref=4, controller="ann@pc")


def test_a_read_only_viewer_only_watches(
    engine: EngineDouble, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    viewer = Viewer(ensure_hub(engine.run, 20), context)
    viewer.hello(read_only=True)
    assert isinstance(viewer.submit("a"), Rejected)
    assert isinstance(viewer.ask(TakeControl(ref=1, viewer="ann", issuer="ann")), Refused)
    assert isinstance(viewer.ask(FetchHistory(ref=1, after_seq=0)), HistoryChunk)
    assert list(FrameReader(engine.run.control)) == []


def test_another_major_version_is_refused_with_both_named(
    engine: EngineDouble, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    viewer = Viewer(ensure_hub(engine.run, 20), context)
    refused = viewer.hello(major=99)
    assert isinstance(refused, Refused)
    assert "99.0" in refused.reason
    assert ".".join(map(str, PROTOCOL_VERSION)) in refused.reason


@pytest.mark.parametrize(
    "frames",
    [
        (b"",),
        (b"garbage",),
        (b"\xc1",),
        (b"\x81\xa1k\xa5Hello",),
        (encode(Ping(ref=1)), b"more"),
        (b"\xff" * 60_000,),
        tuple(b"x" for _ in range(500)),
    ],
)
def test_nonsense_is_refused_and_survived(viewer: Viewer, frames: tuple[bytes, ...]) -> None:
    assert isinstance(viewer.ask_raw(*frames), Refused)
    assert viewer.ask(Ping(ref=8)) == Pong(ref=8)


def test_an_oversized_message_costs_only_its_own_connection(
    engine: EngineDouble, viewer: Viewer, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    rude = Viewer(ensure_hub(engine.run, 20), context)
    rude.requests.send(b"x" * 1_000_000)
    assert viewer.ask(Ping(ref=1)) == Pong(ref=1)
    assert not rude.requests.poll(100)


def test_a_flood_of_requests_that_nobody_reads_stops_nobody(
    engine: EngineDouble, viewer: Viewer, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    rude = Viewer(ensure_hub(engine.run, 20), context)
    for _ in range(3000):
        rude.requests.send(encode(Ping(ref=1)))
    assert viewer.ask(Ping(ref=2)) == Pong(ref=2)


def test_reports_are_served(engine: EngineDouble, viewer: Viewer) -> None:
    (engine.run.reports / "spike-1.md").write_text("# what happened")
    report = viewer.ask(FetchReport(ref=1, report="spike-1"))
    assert report == ReportText(ref=1, report="spike-1", markdown="# what happened")
    assert isinstance(viewer.ask(FetchReport(ref=1, report="../run")), Refused)


def test_sockets_are_private(engine: EngineDouble, viewer: Viewer) -> None:
    endpoint = read_endpoint(engine.run)
    assert endpoint is not None
    for name in ("pub", "req"):
        assert (Path(endpoint.folder) / name).stat().st_mode & 0o077 == 0
    assert Path(endpoint.folder).stat().st_mode & 0o777 == 0o700
    assert psutil.Process(endpoint.pid).net_connections("inet") == [], "no port is open"


def test_a_flood_of_connections_ends_below_the_limit_of_descriptors(
    engine: EngineDouble, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    engine.run.logs.mkdir(exist_ok=True)
    serve = f"ulimit -n 200; {sys.executable} -m fttui.engine.hub {engine.run.path}"
    with open(engine.run.logs / "hub.log", "wb") as log:
        process = subprocess.Popen(["sh", "-c", serve], stdout=log, stderr=log)
    until(lambda: hub_up(engine.run))
    hub = read_endpoint(engine.run)
    assert hub is not None
    crowd = [context.socket(zmq.DEALER) for _ in range(150)]
    for one in crowd:
        one.connect(hub.requests)
    assert process.wait(30) == 0
    said = (engine.run.logs / "hub.log").read_text()
    assert "open files, probably through a faulty viewer; the hub exits" in said
    assert "Too many open files" not in said
    assert ensure_hub(engine.run, 20) != hub


def test_one_hub_per_run_however_many_are_started(engine: EngineDouble, viewer: Viewer) -> None:
    first = read_endpoint(engine.run)
    command = [sys.executable, "-m", "fttui.engine.hub", str(engine.run.path)]
    others = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for _ in range(3)]
    assert [other.wait(30) for other in others] == [0, 0, 0]
    assert read_endpoint(engine.run) == first
    assert viewer.ask(Ping(ref=1)) == Pong(ref=1)


def test_a_living_hub_is_not_robbed_even_without_its_lock(
    engine: EngineDouble, viewer: Viewer
) -> None:
    engine.run.control.with_suffix(".lock").unlink()
    command = [sys.executable, "-m", "fttui.engine.hub", str(engine.run.path)]
    # The living hub takes its lock again within a heartbeat, before or after the other one looks.
    assert subprocess.run(command, stderr=subprocess.DEVNULL, timeout=30).returncode in (0, 1)
    assert viewer.ask(Ping(ref=1)) == Pong(ref=1)


def test_sockets_and_marks_of_a_dead_hub_are_replaced(
    engine: EngineDouble, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    old = ensure_hub(engine.run, 20)
    kill_hub(engine.run, signal.SIGKILL)
    until(lambda: not old.alive)
    assert (Path(old.folder) / "req").exists()
    # A mark whose pid was given to another process must not pass for a hub.
    reused = Endpoint(pid=os.getpid(), started=1.0, folder=old.folder)
    write_mark(engine.run.endpoint, reused)
    new = ensure_hub(engine.run, 20)
    assert new.pid not in (old.pid, os.getpid())
    assert isinstance(Viewer(new, context).hello(), Welcome)


def test_a_terminated_hub_leaves_nothing_and_hangups_do_not_end_it(
    engine: EngineDouble, viewer: Viewer
) -> None:
    endpoint = read_endpoint(engine.run)
    assert endpoint is not None
    for ignored in (signal.SIGHUP, signal.SIGINT):
        os.kill(endpoint.pid, ignored)
    assert viewer.ask(Ping(ref=1)) == Pong(ref=1)
    os.kill(endpoint.pid, signal.SIGTERM)
    until(lambda: not endpoint.alive)
    assert not engine.run.endpoint.exists()
    assert not Path(endpoint.folder).exists()


def test_a_stopped_viewer_does_not_hold_the_hub_at_its_end(
    engine: EngineDouble, viewer: Viewer
) -> None:
    script = """
import sys, zmq
context = zmq.Context()
events, requests = context.socket(zmq.SUB), context.socket(zmq.DEALER)
events.subscribe(b""); events.connect(sys.argv[1]); requests.connect(sys.argv[2])
for _ in range(100):
    requests.send(b"unread")
events.recv(); print("ready", flush=True)
import time; time.sleep(600)
"""
    endpoint = read_endpoint(engine.run)
    assert endpoint is not None
    stopped = subprocess.Popen(
        [sys.executable, "-c", script, endpoint.events, endpoint.requests], stdout=subprocess.PIPE
    )
    assert stopped.stdout is not None
    try:
        assert stopped.stdout.readline() == b"ready\n"
        os.kill(stopped.pid, signal.SIGSTOP)
        engine.train(5000)
        until(lambda: viewer.beat().last_seq == 5002)
        os.kill(endpoint.pid, signal.SIGTERM)
        until(lambda: not endpoint.alive, timeout_s=5)  # with libzmq's own linger: never
    finally:
        stopped.kill()
        stopped.wait()
        stopped.stdout.close()


def test_an_engine_gone_without_a_word_is_reported_with_its_log(
    start_run: StartRun, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    run, process = start_run("--steps", "5", "--die")
    process.wait(30)
    endpoint = read_endpoint(run)
    assert endpoint is not None
    viewer = Viewer(endpoint, context)
    viewer.hello()
    until(lambda: viewer.beat().state is RunState.LOST)
    beat = viewer.beat()
    assert not beat.engine_alive
    assert "RuntimeError: the double was told to die" in beat.engine_log_tail
    answer = viewer.submit("late")
    assert isinstance(answer, Rejected)
    assert "fttui run --resume" in answer.reason


def test_a_hub_nobody_needs_leaves_and_a_watched_one_stays(
    start_run: StartRun, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    run, process = start_run("--steps", "3", idle_s=0.5)
    process.wait(30)
    until(lambda: not hub_up(run))
    assert not run.endpoint.exists()
    launch_hub(run)
    until(lambda: hub_up(run))
    endpoint = read_endpoint(run)
    assert endpoint is not None
    viewer = Viewer(endpoint, context)
    viewer.hello()
    beats: list[list[bytes]] = []
    while len(beats) < 3:  # three beats are two seconds, four times the idle time
        viewer.ask(Ping(ref=1))
        if viewer.events.poll(100):
            beats.append(viewer.events.recv_multipart())
    assert endpoint.alive


def test_a_removed_endpoint_file_comes_back(engine: EngineDouble, viewer: Viewer) -> None:
    before = read_endpoint(engine.run)
    engine.run.endpoint.unlink()
    until(lambda: read_endpoint(engine.run) == before)


def test_a_hub_for_no_run_refuses(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fttui.engine.hub", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 3
    assert "not a run folder" in done.stderr


def test_the_same_value_in_another_command_is_another_command(viewer: Viewer) -> None:
    viewer.submit("a")
    other = SubmitCommand(ref=2, id="a", command=ScaleLr(factor=2.0), viewer="ann", issuer="ann@pc")
    answer = viewer.ask(other)
    assert isinstance(answer, Rejected)
    assert "used for another command: pause" in answer.reason


def test_a_removed_run_folder_ends_the_hub(engine: EngineDouble, viewer: Viewer) -> None:
    import shutil

    endpoint = read_endpoint(engine.run)
    assert endpoint is not None
    shutil.rmtree(engine.run.path)
    until(lambda: not endpoint.alive)


def test_run_folders_of_the_same_name_do_not_share_sockets(runs: Path, tmp_path: Path) -> None:
    here, there = make_run(runs), RunDirectory(tmp_path / "copy")
    import shutil

    shutil.copytree(here.path, there.path)
    first, second = ensure_hub(here, 20), ensure_hub(there, 20)
    assert first.folder != second.folder
    kill_hub(there, signal.SIGTERM)
    until(lambda: not second.alive)
