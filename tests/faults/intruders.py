"""Faults of those who should not be there: other users, nonsense on the port, other versions."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from unittest import mock

import psutil
import zmq

from fttui.engine.errors import ProtocolMismatch
from fttui.engine.protocol.codec import PROTOCOL_VERSION, decode_hub, decode_record, encode
from fttui.engine.protocol.requests import Hello, Ping, Pong, Refused, Welcome
from fttui.engine.run.processes.marks import Endpoint, read_endpoint
from fttui.engine.run.run_dir import RunDirectory
from fttui.tui.connection import hub_stream
from fttui.tui.connection.local import LocalSession
from tests.support.engine_double import make_run
from tests.support.waiting import until

from .audience import intervals_ms, streaming
from .book import Box, Figures, fault, spread
from .invariants import check_journal, control_entries, require
from .stage import read_journal
from .viewers import command, hub_of

NOBODY = 65534
MAX_HUB_BYTES = 512 * 1024**2


@fault(
    "F26",
    "another user reads the run, connects, asks for commands",
    "refused by the system: successes 0",
    "notebook and dashboard ports on localhost: every user of the machine",
)
def other_user(box: Box) -> Figures:
    if os.getuid() != 0:
        return Figures("only root can become another user to try", ok=True, skipped=True)
    # Not where pytest keeps its folders: it closes them to others whenever it is started.
    with tempfile.TemporaryDirectory(prefix="ft-open-", dir="/tmp") as place:
        Path(place).chmod(0o755)
        run = make_run(Path(place) / "runs")
        run.path.parent.chmod(0o755)
        results = _all_ways_in(box, run, Path(place) / "tried")
        require(len(results) == 10, f"only {len(results)} attempts were made")
        require(control_entries(run) == [], "a command of another user is in the control journal")
    successes = sum(result == "in" for result in results)
    return Figures(f"{len(results)} ways in: successes {successes}", ok=successes == 0)


def _all_ways_in(box: Box, run: RunDirectory, tried: Path) -> list[str]:
    """What came of each attempt of another user."""
    tried.touch()
    tried.chmod(0o666)
    with streaming(box, run):
        hub = hub_of(run)
        box.stage.spawn(_try_as_nobody, run, hub, tried).join()
        _open_way_to(Path(hub.folder))
        for name in ("pub", "req"):
            Path(hub.folder, name).chmod(0o777)
        box.stage.spawn(_try_sockets_as_nobody, hub, tried).join()
    return tried.read_text().split()


def _open_way_to(folder: Path) -> None:
    """Let everybody reach a folder, so that only its sockets' own protection is tested."""
    for path in (folder, *folder.parents):
        if path.stat().st_uid == os.getuid() and path not in (Path("/"), Path("/tmp")):
            path.chmod(0o777 if path == folder else 0o755)


def _try_as_nobody(run: RunDirectory, hub: Endpoint, tried: Path) -> None:
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    ways: list[Callable[[], object]] = [
        lambda: os.listdir(run.path),
        lambda: run.journal.read_bytes(),
        lambda: os.open(run.control, os.O_WRONLY | os.O_APPEND),
        lambda: os.open(run.doorbell, os.O_RDWR),
        lambda: run.identity_file.read_bytes(),
        lambda: os.listdir(hub.folder),
        lambda: socket.socket(socket.AF_UNIX).connect(f"{hub.folder}/req"),
        lambda: socket.socket(socket.AF_UNIX).connect(f"{hub.folder}/pub"),
    ]
    for way in ways:
        _note(tried, way)


def _try_sockets_as_nobody(hub: Endpoint, tried: Path) -> None:
    """Even with folder and sockets opened by somebody, the hub looks at who connects."""
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    context = zmq.Context()
    context.linger = 0
    requests, events = context.socket(zmq.DEALER), context.socket(zmq.SUB)
    requests.connect(hub.requests)
    requests.send(encode(command("intruder", "stop", "intruder")))
    events.subscribe(b"")
    events.connect(hub.events)
    for one in (requests, events):
        _note(tried, partial(_hear, one))


def _hear(one: zmq.Socket[bytes]) -> None:
    if not one.poll(2000):
        raise TimeoutError


def _note(tried: Path, way: Callable[[], object]) -> None:
    try:
        way()
        result = "in"
    except (OSError, zmq.ZMQError):
        result = "out"
    with open(tried, "a") as file:
        file.write(f"{result}\n")


class Peak:
    """The most memory that any hub of a run took."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._done = threading.Event()
        self.most_bytes = 0
        self._thread = threading.Thread(target=self._measure, daemon=True)

    def _measure(self) -> None:
        while True:
            hub = read_endpoint(self._run)
            with contextlib.suppress(psutil.Error):
                if hub is not None:
                    rss = psutil.Process(hub.pid).memory_info().rss
                    self.most_bytes = max(self.most_bytes, rss)
            if self._done.wait(0.005):
                return

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


def bad_messages(hub: Endpoint, rng: random.Random, long: bool) -> None:
    """MessagePack that is none, or of other things, or cut short."""
    good = encode(command("fuzz", "note x"))
    with _dealer(hub) as dealer:
        for number in range(1_000_000 if long else 20_000):
            data = bytearray(rng.choice([good, rng.randbytes(rng.randint(0, 200))]))
            for _ in range(rng.randint(1, 4)):
                if data:
                    data[rng.randrange(len(data))] = rng.randrange(256)
            with contextlib.suppress(zmq.Again):
                dealer.send(data[: rng.randint(0, len(data))], zmq.DONTWAIT)
            if number % 50 == 0:
                while dealer.poll(0):
                    dealer.recv()
                time.sleep(0.001)


@contextlib.contextmanager
def _dealer(hub: Endpoint) -> Iterator[zmq.Socket[bytes]]:
    with zmq.Context() as context:
        dealer = context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.connect(hub.requests)
        yield dealer
        dealer.close()


def _raw(hub: Endpoint, name: str = "req") -> socket.socket:
    one = socket.socket(socket.AF_UNIX)
    one.settimeout(5.0)
    one.connect(f"{hub.folder}/{name}")
    return one


_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)


def _shake_hands(one: socket.socket) -> None:
    """The ZMTP handshake of a DEALER."""
    one.sendall(_GREETING)
    waiting = 64
    while waiting:
        waiting -= len(one.recv(waiting))
    ready = b"\x05READY\x0bSocket-Type\0\0\0\x06DEALER\x08Identity\0\0\0\0"
    one.sendall(b"\x04" + bytes([len(ready)]) + ready)
    head = one.recv(2)
    one.recv(head[1])


def garbage(hub: Endpoint, rng: random.Random, long: bool) -> None:
    """Connections that speak something else, or begin well and stop."""
    crowd = []
    for number in range(1000 if long else 300):
        with contextlib.suppress(OSError):
            one = _raw(hub, rng.choice(["req", "pub"]))
            good = _GREETING[: rng.randint(1, 64)]
            one.sendall(good if number % 2 else rng.randbytes(rng.randint(1, 500)))
            crowd.append(one)
    for one in crowd:
        one.close()


def _giants(hub: Endpoint, _rng: random.Random, _long: bool) -> None:
    """Frames that announce 2^62 and 2 GiB."""
    for size in (2**62, 2**31):
        with contextlib.suppress(OSError):
            one = _raw(hub)
            _shake_hands(one)
            one.sendall(b"\x02" + struct.pack(">Q", size) + bytes(100_000))
            one.recv(1)
            one.close()


def endless(hub: Endpoint, _rng: random.Random, long: bool) -> None:
    """A message of ever more parts."""
    with contextlib.suppress(OSError):
        one = _raw(hub)
        _shake_hands(one)
        parts = (b"\x01\x64" + bytes(100)) * 1000
        for _ in range(20_000 if long else 4_000):
            one.sendall(parts)
        one.close()


def _subscriptions(hub: Endpoint, rng: random.Random, _long: bool) -> None:
    """300 000 of them, by one viewer."""
    with zmq.Context() as context:
        events = context.socket(zmq.SUB)
        events.setsockopt(zmq.LINGER, 0)
        events.setsockopt(zmq.SNDHWM, 0)
        events.connect(hub.events)
        events.subscribe(b"")
        events.poll(5000)
        for number in range(300_000):
            events.subscribe(rng.randbytes(12))
            if number % 1000 == 0:
                time.sleep(0.002)
        time.sleep(1.0)
        events.close()


def _large_topic(hub: Endpoint, _rng: random.Random, _long: bool) -> None:
    """One subscription of 20 MB."""
    with contextlib.suppress(OSError):
        one = _raw(hub, "pub")
        _shake_hands(one)
        size = 20_000_000
        one.sendall(b"\x02" + struct.pack(">Q", size + 1) + b"\x01" + bytes(size))
        one.close()


Attack = Callable[[Endpoint, random.Random, bool], None]
_ATTACKS: dict[str, Attack] = {
    "bad MessagePack": bad_messages,
    "garbage ZMTP": garbage,
    "2^62 and 2 GiB frames": _giants,
    "20 MB topic": _large_topic,
    "endless message": endless,
    "300k subscriptions": _subscriptions,
}


@fault(
    "F27",
    "nonsense on the port: " + ", ".join(_ATTACKS),
    "training untouched, no state changed, hub ≤ 512 MiB or started again",
    "libzmq's sockets: 492 MB (subscriptions), 662 MB (endless message)",
)
def nonsense(box: Box) -> Figures:
    run = make_run(box.folder / "runs")
    figures, most = [], 0
    with streaming(box, run) as engine:
        began = time.time()
        for name, attack in _ATTACKS.items():
            hub = hub_of(run)
            with Peak(run) as peak:
                attack(hub, box.rng, box.long)
            most = max(most, peak.most_bytes)
            again = " (started again)" if hub_of(run) != hub else ""
            figures.append(f"{name} {peak.most_bytes >> 20} MiB{again}")
            until(lambda: _answers(hub_of(run)))
            require(os.path.exists(f"/proc/{engine}"), f"the engine is gone after {name}")
        pauses = intervals_ms(run, began, time.time())
    check_journal(run)
    strange = [e.id for e in control_entries(run) if not e.id]
    require(not strange, "nonsense got into the control journal")
    ours = f"RSS max: {', '.join(figures)}; ms between steps {spread(pauses, 1)}"
    return Figures(ours, ok=most <= MAX_HUB_BYTES)


def _answers(hub: Endpoint) -> bool:
    with _dealer(hub) as dealer:
        dealer.send(encode(Ping(ref=7)))
        return bool(dealer.poll(2000)) and decode_hub(dealer.recv()) == Pong(ref=7)


@fault(
    "F33",
    "viewers and records of the version before and after",
    "read, or refused with both versions named; crashes 0",
    "-",
)
def other_versions(box: Box) -> Figures:
    run = make_run(box.folder / "runs")
    major, minor = PROTOCOL_VERSION
    with streaming(box, run):
        hub = hub_of(run)
        for version in ((major - 1, 9), (major + 1, 0)):
            reply = _greet(hub, version)
            require(isinstance(reply, Refused), f"{version} was let in")
            require(f"{version[0]}." in str(reply) and f"{major}." in str(reply), str(reply))
        require(isinstance(_greet(hub, (major, minor + 1)), Welcome), "a newer minor was refused")
        with mock.patch.object(hub_stream, "PROTOCOL_VERSION", (major + 1, 0)):
            try:
                asyncio.run(_attach_once(run))
            except ProtocolMismatch as refusal:
                require(f"{major + 1}.0" in str(refusal), str(refusal))
            else:
                require(False, "a session of another major version went on")
        _strange_records(run)
    return Figures("3 versions, 2 strange records: crashes 0, refusals name both", ok=True)


def _greet(hub: Endpoint, version: tuple[int, int]) -> object:
    with _dealer(hub) as dealer:
        dealer.send(encode(Hello(ref=1, version=version, viewer="v", issuer="i")))
        require(dealer.poll(5000), "no answer to a greeting")
        return decode_hub(dealer.recv())


async def _attach_once(run: RunDirectory) -> None:
    session = LocalSession(run, one_shot=True)
    await asyncio.wait_for(session.listen(lambda _: None), 10.0)


def _strange_records(run: RunDirectory) -> None:
    import msgspec

    plain = msgspec.to_builtins(read_journal(run)[-1])
    plain[4]["of a later version"] = {"deep": [1, 2]}
    require(decode_record(msgspec.msgpack.encode(plain)) is not None, "a new field was refused")
    plain[4]["k"] = "OfALaterVersion"
    require(decode_record(msgspec.msgpack.encode(plain)) is None, "a new kind was not skipped")
