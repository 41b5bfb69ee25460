"""One connection to a bridge on a remote host: an ssh process and the frames sent through it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import msgspec

from fttui.engine.errors import FttuiError, ProtocolMismatch
from fttui.engine.protocol.codec import PROTOCOL_VERSION, UNDECODABLE, DecodeError, encode
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

from .remote_host import LoginRefused, RemoteHost, Unreachable

HANDSHAKE_S = 30.0
"""Seconds for the login and the first answer of a remote host."""
PROMPTED_S = 180.0
"""Seconds for both where ssh may ask the user for a passphrase or about a host key."""
_READ_BYTES = 256 * 1024
_KEPT_ERROR_BYTES = 4096
_KEPT_ERROR_LINES = 6
_EXIT_S = 1.0
_KILL_S = 3.0


@asynccontextmanager
async def answered_in_time(host: str, limit_s: float | None = None) -> AsyncIterator[None]:
    """Limit how long a remote host may take to answer.

    Args:
        host: the name of the host, for the error.
        limit_s: the limit in seconds; None leaves a user at a terminal time for a passphrase.

    Raises:
        Unreachable: the host did not answer in time, for instance because it accepts connections
            and says nothing.
    """
    if limit_s is None:
        limit_s = PROMPTED_S if sys.stdin.isatty() else HANDSHAKE_S
    try:
        async with asyncio.timeout(limit_s):
            yield
    except TimeoutError:
        raise Unreachable(f"{host} did not answer within {limit_s:g} s") from None


class RemoteFailed(FttuiError):
    """The bridge reported an error; the exit code is the one that fttui has on the remote host."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class SshConnection:
    """An ssh process with a bridge at its remote end.

    It can move from one event loop to another: `detach` in the first, then `attach` in the second.
    """

    def __init__(self, host: RemoteHost, *, may_prompt: bool, shared: bool = True) -> None:
        """Start ssh; for the arguments see `RemoteHost.argv`.

        Raises:
            LoginRefused: ssh cannot be started.
        """
        self._host = host
        self._echo = may_prompt
        try:
            self._process = subprocess.Popen(
                host.argv(may_prompt=may_prompt, shared=shared),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                # Without a controlling terminal, ssh cannot write questions over the app.
                start_new_session=not may_prompt,
            )
        except (OSError, ValueError) as error:
            raise LoginRefused(
                f"cannot start ssh: {error}; install ssh, or set $FTTUI_SSH to its command"
            ) from None
        process = self._process
        self._streams = [s for s in (process.stdin, process.stdout, process.stderr) if s]
        self._in, self._out, self._err = (stream.fileno() for stream in self._streams)
        for descriptor in (self._in, self._out, self._err):
            os.set_blocking(descriptor, False)
        self._parser = FrameParser(expect_magic=True)
        self._messages: deque[tuple[int, bytes, int]] = deque()
        self._unsent = bytearray()
        self._stderr = b""
        self._fault: FttuiError | None = None
        self._ended = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._received = asyncio.Event()
        self.greeting: Greeting | None = None

    @property
    def host(self) -> str:
        """The name of the remote host as ssh knows it."""
        return self._host.host

    @property
    def noise(self) -> str:
        """The output of the login shell before the greeting of the bridge."""
        return self._parser.noise.decode(errors="replace").strip()

    def attach(self) -> None:
        """Send and receive in the running event loop; `detach` must have left any other one."""
        self._loop = asyncio.get_running_loop()
        self._received = asyncio.Event()
        if not self._ended:
            self._loop.add_reader(self._out, self._on_output)
        self._loop.add_reader(self._err, self._on_errors)
        self._write()

    def detach(self) -> None:
        """Stop sending and receiving in the event loop; messages already received are kept.

        What ssh writes to its standard error is no longer printed from then on.
        """
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
        self._received.set()

    def _on_errors(self) -> None:
        data = _read(self._err)
        if data:
            self._stderr = (self._stderr + data)[-_KEPT_ERROR_BYTES:]
            if self._echo:
                # Not to the descriptor: the command line makes printable what it prints.
                sys.stderr.write(data.decode(errors="replace"))
                sys.stderr.flush()
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
                self._unsent.clear()  # `next` raises the reason
                break
            del self._unsent[:written]
        if self._loop is not None:
            self._loop.remove_writer(self._in)

    def send(self, channel: FrameKind, payload: bytes) -> None:
        """Send a frame as soon as ssh accepts it."""
        self._unsent += frames_of(channel, payload)
        self._write()

    def send_to_bridge(self, message: msgspec.Struct) -> None:
        """Send a message to the bridge itself, not to the hub."""
        self.send(FrameKind.TALK, encode(message))

    def acknowledge(self, total_bytes: int) -> None:
        """Report how many bytes were received, which limits how much the bridge sends ahead."""
        self.send_to_bridge(Received(total_bytes=total_bytes))

    @property
    def received_bytes(self) -> int:
        """Bytes received from the bridge when the oldest message that waits for `next` had arrived.

        Without a waiting message these are all received bytes.
        """
        return self._messages[0][2] if self._messages else self._parser.received_bytes

    async def next(self) -> tuple[int, bytes]:
        """Wait for the next message and return its frame kind and payload.

        Raises:
            FttuiError: the connection has ended; the message says why.
        """
        while not self._messages:
            if self._ended:
                raise await self._end_reason()
            self._received.clear()
            await self._received.wait()
        channel, payload, _ = self._messages.popleft()
        return channel, payload

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Turn an error of decoding into one that names the host.

        Raises:
            ProtocolMismatch: what the host sent is not a message of this version.
        """
        try:
            yield
        except (DecodeError, *UNDECODABLE) as error:
            raise ProtocolMismatch(
                f"{self.host} sent a message that this version cannot read: {error}; "
                "install the same fttui on both machines"
            ) from None

    async def _end_reason(self) -> FttuiError:
        code = await self._exit_code(_EXIT_S)
        self._on_errors()
        if self._fault is not None:
            return self._fault
        noise = "" if self._parser.greeted else self.noise
        return self._host.explain(code, self._error_text(), noise)

    def _error_text(self) -> str:
        lines = self._stderr.decode(errors="replace").splitlines()
        # ssh frames its warning about a changed host key in lines of @.
        lines = [line.strip() for line in lines if line.strip() and set(line) != {"@"}]
        return "\n".join(lines[-_KEPT_ERROR_LINES:])

    async def _exit_code(self, patience_s: float) -> int | None:
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                while self._process.poll() is None:
                    await asyncio.sleep(0.01)
        return self._process.poll()

    async def greeted(self) -> Greeting:
        """Wait for the greeting of the bridge and return it.

        Raises:
            ProtocolMismatch: the bridge speaks another major version.
            FttuiError: the connection ended before the greeting.
        """
        while self.greeting is None:
            channel, payload = await self.next()
            if channel != FrameKind.GREETING:
                continue
            with self.reading():
                self.greeting = msgspec.json.decode(payload, type=Greeting)
        if self.greeting.proto[0] != PROTOCOL_VERSION[0]:
            theirs, ours = (".".join(map(str, v)) for v in (self.greeting.proto, PROTOCOL_VERSION))
            raise ProtocolMismatch(
                f"fttui {self.greeting.version} on {self.host} speaks protocol {theirs}, this "
                f"one {ours}; install the same fttui on both machines"
            )
        return self.greeting

    async def runs(self) -> list[RunSummary]:
        """Return the runs on the remote host, newest first.

        Raises:
            FttuiError: the connection ended, the bridge reported an error, or its answer cannot be
                read.
        """
        await self.greeted()
        self.send_to_bridge(ListRuns())
        while True:
            message = await self._next_from_bridge()
            if isinstance(message, Runs):
                with self.reading():
                    return msgspec.msgpack.decode(message.table, type=list[RunSummary])

    async def open(self, asked: Open) -> Opened:
        """Open a run, which makes the bridge send its journal.

        Raises:
            RemoteFailed: the run cannot be opened.
            FttuiError: the connection ended, or the bridge speaks another version.
        """
        await self.greeted()
        self.send_to_bridge(asked)
        while True:
            message = await self._next_from_bridge()
            if isinstance(message, Opened):
                return message

    async def _next_from_bridge(self) -> BridgeMessage | None:
        channel, payload = await self.next()
        with self.reading():
            message = decode_bridge_message(payload) if channel == FrameKind.TALK else None
        if isinstance(message, Failed):
            raise RemoteFailed(f"{self.host}: {message.reason}", message.code)
        return message

    async def close(self) -> None:
        """End ssh and with it the bridge, by a signal if it does not exit; the run continues."""
        self.detach()
        for stream in self._streams:
            stream.close()
        if await self._exit_code(_EXIT_S) is None:
            self._process.terminate()
            if await self._exit_code(_KILL_S) is None:
                self._process.kill()
                self._process.wait()


def _read(descriptor: int) -> bytes | None:
    """Return available bytes: None if there are none now, empty at the end or after an error."""
    try:
        return os.read(descriptor, _READ_BYTES)
    except BlockingIOError:
        return None
    except OSError:
        return b""
