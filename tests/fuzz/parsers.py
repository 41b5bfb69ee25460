"""Every function that reads bytes from elsewhere, with valid inputs and what it may raise."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_args

import msgspec

from fttui.engine.config.load import parse_resolved
from fttui.engine.config.yaml_tree import parse_yaml
from fttui.engine.errors import FttuiError
from fttui.engine.hub.intake import ClockReading, Intake
from fttui.engine.protocol.codec import (
    DecodeError,
    decode_beat,
    decode_client,
    decode_hub,
    decode_readable,
    encode,
    pack_history,
    peek_seq,
    unpack_history,
)
from fttui.engine.protocol.command_args import CommandError
from fttui.engine.protocol.commands import COMMANDS, parse_command
from fttui.engine.protocol.events import LogEmitted
from fttui.engine.protocol.record_blocks import pack_block, unpack_block
from fttui.engine.protocol.requests import AnyClientMessage, AnyHubMessage, SubmitCommand
from fttui.engine.protocol.ssh_protocol import (
    MAGIC as BRIDGE_MAGIC,
)
from fttui.engine.protocol.ssh_protocol import (
    BridgeMessage,
    BridgeRequest,
    FrameKind,
    FrameParser,
    decode_bridge_message,
    decode_bridge_request,
    frames_of,
)
from fttui.engine.protocol.states import RunState
from fttui.engine.run.checkpoint_store import MANIFEST, CheckpointStore, FileEntry, Manifest
from fttui.engine.run.control_log import ControlEntry, ControlWriter
from fttui.engine.run.journal import (
    MAGIC,
    DamagedPart,
    FrameReader,
    frame,
    frames_after_damage,
    read_past_damage,
)
from fttui.engine.run.journal_summary import summarize_records
from fttui.engine.run.processes.marks import (
    Endpoint,
    EngineMark,
    ProcessMark,
    read_endpoint,
    read_engine_status,
)
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.run.run_index import read_ends, summarize
from fttui.engine.train.control.settings_store import load_desired
from fttui.engine.train.journal_writer import JournalWriter
from fttui.tui.cli.ls import event_line
from fttui.tui.view_model.reducer import apply_many
from fttui.tui.view_model.run_view import RunView
from tests.contract.examples import all_messages
from tests.support.engine_double import make_run


@dataclass(frozen=True)
class Parser:
    """One reader of foreign bytes."""

    name: str
    read: Callable[[bytes], object]
    bases: list[bytes]
    """Valid inputs."""
    form: str
    """`msgpack`, `json` or `bytes`."""
    may_raise: tuple[type[BaseException], ...]
    share: float = 1.0
    """Share of the inputs in the long form; those that write files or parse YAML get fewer."""


class _Memory:
    """A control journal in memory."""

    def __init__(self) -> None:
        self.entries: list[ControlEntry] = []
        self.last_seq = 0

    def append(self, entry: ControlEntry) -> None:
        """Keep nothing; the intake is asked once."""


def _messages(*kinds: Any) -> list[bytes]:
    wanted = tuple(kind for union in kinds for kind in (get_args(union) or (union,)))
    return [encode(m) for m in all_messages().values() if isinstance(m, wanted)]


def _records() -> list[bytes]:
    return [encode(m) for name, m in all_messages().items() if name.startswith("Record/")]


def _submit(data: bytes) -> None:
    message = decode_client(data)
    if isinstance(message, SubmitCommand):
        now = ClockReading(1.0, 1.0, "boot")
        Intake(_Memory()).submit(message, state=RunState.RUNNING, now=now)


def _show(data: bytes) -> None:
    """A record on its way into the app, `ls` and `events`."""
    peek_seq(data)
    record = decode_readable(data)
    if record is not None:
        summarize_records([record, record]).status.state(read_engine_status(_run()))
        apply_many(RunView(), [record, msgspec.structs.replace(record, seq=record.seq + 1)])


def _line(data: bytes) -> None:
    event_line(data)


def _frames(data: bytes) -> None:
    list(frames_after_damage(data[:400]))
    run = _run()
    run.journal.write_bytes(data)
    for part in read_past_damage(run.journal, 0):
        assert isinstance(part, bytes | DamagedPart)
    read_ends(run.journal)


def _resumed(data: bytes) -> None:
    """A journal that an engine goes on with."""
    run = _run()
    run.journal.write_bytes(data)
    writer = JournalWriter(run, lambda _: None, in_thread=False)
    summarize_records([r for r in map(decode_readable, writer.recovered) if r is not None])
    writer.emit(LogEmitted(level="info", text="on"), step=1, timeline=1)
    writer.close()
    (*_, last) = FrameReader(run.journal)
    assert decode_readable(last) is not None
    for left in run.path.glob("journal.log.*"):
        left.unlink()


def _bridge_frames(data: bytes) -> None:
    parser = FrameParser(expect_magic=True)
    for at in range(0, len(data), 7):
        list(parser.feed(data[at : at + 7]))


def _manifest(data: bytes) -> None:
    run = _run()
    folder = run.checkpoints / "step-000001"
    folder.mkdir(exist_ok=True)
    (folder / MANIFEST).write_bytes(data)
    store = CheckpointStore(run)
    for manifest in store.all():
        with suppress(FttuiError):
            store.verify(manifest)
        assert all((folder / name).is_relative_to(folder) for name in manifest.files)


def _settings(data: bytes) -> None:
    run = _run()
    (run.path / "desired.json").write_bytes(data)
    load_desired(run, _config())


def _identity(data: bytes) -> None:
    run = _run()
    before = run.identity_file.read_bytes()
    run.identity_file.write_bytes(data)
    try:
        summarize(run)
    finally:
        run.identity_file.write_bytes(before)


def _engine_mark(data: bytes) -> None:
    run = _run()
    run.engine.write_bytes(data)
    try:
        read_engine_status(run)
    finally:
        run.engine.unlink()


def _endpoint_mark(data: bytes) -> None:
    run = _run()
    run.endpoint.write_bytes(data)
    if (found := read_endpoint(run)) is not None:
        assert found.alive in (True, False)


def _control(data: bytes) -> None:
    run = _run()
    run.control.unlink(missing_ok=True)
    run.control.write_bytes(data)
    writer = ControlWriter(run)
    writer.close()
    for left in run.path.glob("control.log.*"):
        left.unlink()


def _yaml(data: bytes) -> None:
    parse_yaml(data.decode("utf-8", "replace")[:20_000], "fuzz.yaml", [])


def _configuration(data: bytes) -> None:
    parse_resolved(data.decode("utf-8", "replace")[:20_000])


def _command(data: bytes) -> None:
    parse_command(data.decode("utf-8", "replace").split())


@cache
def _run() -> RunDirectory:
    shared = Path("/dev/shm")
    place = tempfile.mkdtemp(prefix="fuzz-", dir=shared if shared.is_dir() else None)
    return make_run(Path(place))


@cache
def _config() -> Any:
    return parse_resolved(CONFIG)


CONFIG = """name: x
task: sft
model: {id: some, quantize: none}
data: {train: [{path: a.jsonl, weight: 2}], max_length: 32}
train: {steps: 8, batch: 4, lr: 1e-4}
"""
_MANIFEST = Manifest(
    name="step-000001", step=1, timeline=1, time=1.0, world_size=1, incarnation=1,
    files={"a/b.bin": FileEntry(size_bytes=3, sha256="00")},
)  # fmt: skip
_SETTINGS = (
    b'{"desired":{"lr_scale":0.5,"clip":1.0},"configured":{"lr":0.1,"clip":1.0,"nonfinite":"skip"}}'
)


def _marks(kind: type[ProcessMark], **more: Any) -> list[bytes]:
    me = ProcessMark.current()
    old = kind(pid=me.pid, started=me.started, **more)
    return [
        msgspec.json.encode(m)
        for m in (old, kind(pid=me.pid, started=me.started, identity=me.identity, **more))
    ]


def _control_entries() -> list[bytes]:
    entries = [
        ControlEntry(
            seq=n, time=1.0, id=f"c{n}", command=parse_command([*words.split()]), issuer="me"
        )
        for n, words in enumerate(("pause", "lr scale 0.5", "rollback last", "note x"), start=1)
    ]
    return [MAGIC + b"".join(frame(msgspec.msgpack.encode(entry)) for entry in entries)]


_SLOW = 0.02


@cache
def parsers() -> list[Parser]:
    """All of them."""
    records, nothing = _records(), ()
    wire = (DecodeError,)
    bridge = [
        BRIDGE_MAGIC + frames_of(FrameKind.TALK, r) + frames_of(FrameKind.BEAT, r)
        for r in records[:3]
    ]
    line = (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError)
    return [
        Parser("request", decode_client, _messages(AnyClientMessage), "msgpack", wire),
        Parser("command to the hub", _submit, _messages(SubmitCommand), "msgpack", wire),
        Parser("reply", decode_hub, _messages(AnyHubMessage), "msgpack", wire),
        Parser("heartbeat", decode_beat, [encode(all_messages()["Beat"])], "msgpack", wire),
        Parser("record in the app", _show, records, "msgpack", wire),
        Parser("record in events", _line, records, "msgpack", line),
        Parser(
            "history", lambda d: list(unpack_history(d)), [pack_history(records[:4])], "bytes", wire
        ),
        Parser("block", unpack_block, [pack_block(records[:4])], "bytes", (DecodeError,)),
        Parser(
            "journal", _frames, [MAGIC + b"".join(map(frame, records[:3]))], "bytes", nothing, _SLOW
        ),
        Parser(
            "journal on resume",
            _resumed,
            [MAGIC + b"".join(map(frame, [records[0], *records[:3]]))],
            "bytes",
            nothing,
            _SLOW,
        ),
        Parser("control journal", _control, _control_entries(), "bytes", nothing, _SLOW),
        Parser("bridge frames", _bridge_frames, bridge, "bytes", wire),
        Parser("bridge request", decode_bridge_request, _messages(BridgeRequest), "msgpack", wire),
        Parser("bridge message", decode_bridge_message, _messages(BridgeMessage), "msgpack", wire),
        Parser("YAML", _yaml, [CONFIG.encode()], "bytes", (FttuiError,), _SLOW),
        Parser("configuration", _configuration, [CONFIG.encode()], "bytes", (FttuiError,), _SLOW),
        Parser("manifest", _manifest, [msgspec.json.encode(_MANIFEST)], "json", nothing, _SLOW),
        Parser("settings", _settings, [_SETTINGS], "json", nothing),
        Parser(
            "identity", _identity, [_run().identity_file.read_bytes()], "json", (FttuiError,), _SLOW
        ),
        Parser(
            "engine mark", _engine_mark, _marks(EngineMark, incarnation=1), "json", nothing, _SLOW
        ),
        Parser("endpoint", _endpoint_mark, _marks(Endpoint, folder="/x"), "json", nothing, _SLOW),
        Parser(
            "command line", _command, [c.usage.encode() for c in COMMANDS], "bytes", (CommandError,)
        ),
    ]
