"""One connection to a bridge on another machine: an ssh process and the frames through it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections import deque
from contextlib import suppress

import msgspec

from fttui.engine.errors import FttuiError, ProtocolMismatch
from fttui.engine.protocol.codec import PROTOCOL_VERSION, DecodeError, encode
from fttui.engine.protocol.ssh_protocol import (
    BridgeMessage,
    Failed,
    FrameKind,
    FrameParser,
    Greeting,
    ListRuns,
    Open,
    Opened,
    Received,
    Runs,
    decode_bridge_message,
    frames_of,
)
from fttui.engine.run.run_index import RunSummary

from .remote_host import LoginRefused, RemoteHost

HANDSHAKE_S = 30.0
_READ_BYTES = 256 * 1024
_KEPT_ERROR_BYTES = 4096
_KEPT_ERROR_LINES = 6
_EXIT_S = 1.0
_KILL_S = 3.0


class RemoteFailed(FttuiError):
    """The other side says why it cannot go on; the exit code is the one it would give there."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class SshConnection:
    """An ssh process with a bridge at its far end; may move from one event loop to the next."""

    def __init__(self, host: RemoteHost, *, may_prompt: bool, shared: bool = True) -> None:
        self._host = host
        self._echo = may_prompt
        try:
            self._process = subprocess.Popen(
                host.argv(may_prompt=may_prompt, shared=shared),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                # Without a terminal of its own ssh cannot ask into the middle of the app.
                start_new_session=not may_prompt,
            )
        except OSError as error:
            raise LoginRefused(f"ssh cannot be started: {error}; see $FTTUI_SSH") from None
        process = self._process
        self._streams = [s for s in (process.stdin, process.stdout, process.stderr) if s]
        self._in, self._out, self._err = (stream.fileno() for stream in self._streams)
        for descriptor in (self._in, self._out, self._err):
            os.set_blocking(descriptor, False)
        self._parser = FrameParser(expect_magic=True)
        self._messages: deque[tuple[int, bytes, int]] = deque()
        self._unsent = bytearray()
        self._said = b""
        self._fault: FttuiError | None = None
        self._ended = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stirred = asyncio.Event()
        self.greeting: Greeting | None = None

    @property
    def host(self) -> str:
        """The name of the remote host as ssh knows it."""
        return self._host.host

    @property
    def noise(self) -> str:
        """What a login shell printed before the bridge spoke."""
        return self._parser.noise.decode(errors="replace").strip()

    # in one event loop at a time

    def attach(self) -> None:
        """Work in the running loop."""
        self._loop = asyncio.get_running_loop()
        self._stirred = asyncio.Event()
        if not self._ended:
            self._loop.add_reader(self._out, self._on_output)
        self._loop.add_reader(self._err, self._on_errors)
        self._write()

    def detach(self) -> None:
        """Leave the loop; what has come in stays."""
        if self._loop is not None and not self._loop.is_closed():
            for descriptor in (self._out, self._err):
                self._loop.remove_reader(descriptor)
            self._loop.remove_writer(self._in)
        self._loop = None
        self._echo = False

    def _on_output(self) -> None:
        data = _read(self._out)
        if data is None:
            return
        try:
            for channel, payload in self._parser.feed(data):
                self._messages.append((channel, payload, self._parser.received_bytes))
        except DecodeError as error:
            self._fault = self._host.explain(None, "", self.noise or str(error))
        if not data or self._fault is not None:
            self._ended = True
            if self._loop is not None:
                self._loop.remove_reader(self._out)
        self._stirred.set()

    def _on_errors(self) -> None:
        data = _read(self._err)
        if data:
            self._said = (self._said + data)[-_KEPT_ERROR_BYTES:]
            if self._echo:
                os.write(sys.stderr.fileno(), data)
        elif data is not None and self._loop is not None:
            self._loop.remove_reader(self._err)

    def _write(self) -> None:
        while self._unsent:
            try:
                written = os.write(self._in, self._unsent)
            except BlockingIOError:
                if self._loop is not None:
                    self._loop.add_writer(self._in, self._write)
                return
            except OSError:
                self._unsent.clear()  # the reading side learns why
                break
            del self._unsent[:written]
        if self._loop is not None:
            self._loop.remove_writer(self._in)

    def send(self, channel: FrameKind, payload: bytes) -> None:
        """Send a message as soon as ssh takes it."""
        self._unsent += frames_of(channel, payload)
        self._write()

    def say(self, message: msgspec.Struct) -> None:
        """Send a message to the bridge itself."""
        self.send(FrameKind.TALK, encode(message))

    def acknowledge(self, total_bytes: int) -> None:
        """Tell how much has been taken in; the bridge sends no faster."""
        self.say(Received(total_bytes=total_bytes))

    @property
    def received_bytes(self) -> int:
        """All that came from the bridge and has been taken out by `next`."""
        return self._messages[0][2] if self._messages else self._parser.received_bytes

    async def next(self) -> tuple[int, bytes]:
        """The next message as (channel, payload).

        Raises:
            FttuiError: the connection has ended; the text says why.
        """
        while not self._messages:
            if self._ended:
                raise await self._why()
            self._stirred.clear()
            await self._stirred.wait()
        channel, payload, _ = self._messages.popleft()
        return channel, payload

    async def _why(self) -> FttuiError:
        code = await self._exit_code(_EXIT_S)
        self._on_errors()
        if self._fault is not None:
            return self._fault
        noise = "" if self._parser.greeted else self.noise
        return self._host.explain(code, self._last_words(), noise)

    def _last_words(self) -> str:
        lines = self._said.decode(errors="replace").splitlines()
        told = [line.strip() for line in lines if line.strip() and set(line) != {"@"}]
        return "\n".join(told[-_KEPT_ERROR_LINES:])

    async def _exit_code(self, patience_s: float) -> int | None:
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                while self._process.poll() is None:
                    await asyncio.sleep(0.01)
        return self._process.poll()

    # the first words

    async def greeted(self) -> Greeting:
        """Wait for the bridge.

        Raises:
            ProtocolMismatch: it speaks another major version.
            FttuiError: there is none.
        """
        while self.greeting is None:
            channel, payload = await self.next()
            if channel != FrameKind.GREETING:
                continue
            try:
                self.greeting = msgspec.json.decode(payload, type=Greeting)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise ProtocolMismatch(f"the bridge on {self.host}: {error}") from None
        if self.greeting.proto[0] != PROTOCOL_VERSION[0]:
            theirs, ours = (".".join(map(str, v)) for v in (self.greeting.proto, PROTOCOL_VERSION))
            raise ProtocolMismatch(
                f"fttui {self.greeting.version} on {self.host} speaks protocol {theirs}, this "
                f"one {ours}; install the same fttui on both machines"
            )
        return self.greeting

    async def runs(self) -> list[RunSummary]:
        """The runs over there, newest first."""
        await self.greeted()
        self.say(ListRuns())
        while True:
            message = await self._hear()
            if isinstance(message, Runs):
                return msgspec.msgpack.decode(message.table, type=list[RunSummary])

    async def open(self, asked: Open) -> Opened:
        """Have a run served.

        Raises:
            RemoteFailed: it cannot be.
        """
        await self.greeted()
        self.say(asked)
        while True:
            message = await self._hear()
            if isinstance(message, Opened):
                return message

    async def _hear(self) -> BridgeMessage | None:
        channel, payload = await self.next()
        message = decode_bridge_message(payload) if channel == FrameKind.TALK else None
        if isinstance(message, Failed):
            raise RemoteFailed(f"{self.host}: {message.reason}", message.code)
        return message

    async def close(self) -> None:
        """End ssh and with it the bridge; the run goes on."""
        self.detach()
        for stream in self._streams:
            stream.close()
        if await self._exit_code(_EXIT_S) is None:
            self._process.terminate()
            if await self._exit_code(_KILL_S) is None:
                self._process.kill()
                self._process.wait()


def _read(descriptor: int) -> bytes | None:
    """What is there; None when nothing is, empty at the end."""
    try:
        return os.read(descriptor, _READ_BYTES)
    except BlockingIOError:
        return None
    except OSError:
        return b""
