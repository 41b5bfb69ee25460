"""A TCP link that can be slow, far, cut, or swallow everything: between ssh and sshd."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Any

_CHUNK_BYTES = 4096
_QUEUED = 64
_KERNEL_BYTES = 64 * 1024
_CATCH_UP_S = 0.05


class Link:
    """Forwards connections to a port of this machine; its knobs may be turned at any time."""

    def __init__(self, target_port: int) -> None:
        self._target = target_port
        self.rate_bytes_s: float | None = None
        """In each direction; None for no limit."""
        self.latency_s = 0.0
        """One way."""
        self.cut_after_bytes: int | None = None
        """Every connection is reset after so many bytes from the far side."""
        self.connections = 0
        """Accepted so far."""
        self._flows = threading.Event()
        self._flows.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _KERNEL_BYTES)
        self.port = int(self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(asyncio.start_server(self._serve, sock=self._listener))
        self._loop.run_forever()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            there, back = await asyncio.open_connection(
                "127.0.0.1", self._target, limit=_KERNEL_BYTES
            )
        except OSError:
            writer.transport.abort()
            return
        ends = {writer, back}
        self._writers |= ends
        pumps = [
            asyncio.ensure_future(self._pump(reader, back, None)),
            asyncio.ensure_future(self._pump(there, writer, self.cut_after_bytes)),
        ]
        with contextlib.suppress(asyncio.CancelledError):  # asyncio would print it
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for pump in pumps:
            pump.cancel()
        self._writers -= ends
        for end in ends:
            end.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, budget: int | None
    ) -> None:
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_QUEUED)
        sending = asyncio.ensure_future(self._send(queue, writer))
        free_at = 0.0
        try:
            while data := await reader.read(_CHUNK_BYTES):
                if self.rate_bytes_s:
                    # Waking up late must not make the link slower than it says.
                    free_at = max(free_at, self._loop.time() - _CATCH_UP_S)
                    free_at += len(data) / self.rate_bytes_s
                    await asyncio.sleep(free_at - self._loop.time())
                while not self._flows.is_set():
                    await asyncio.sleep(0.01)
                if budget is not None and (budget := budget - len(data)) <= 0:
                    return
                await queue.put((self._loop.time() + self.latency_s, data))
        except OSError:
            pass
        finally:
            sending.cancel()

    async def _send(
        self, queue: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(OSError):
            while True:
                due, data = await queue.get()
                await asyncio.sleep(max(0.0, due - self._loop.time()))
                writer.write(data)
                await writer.drain()

    def _call(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._loop.call_soon_threadsafe(function, *arguments)

    def cut(self) -> None:
        """Reset every connection."""
        for end in list(self._writers):
            self._call(end.transport.abort)

    def swallow(self, on: bool = True) -> None:
        """Let nothing through, and tell nobody; or let it through again."""
        if on:
            self._flows.clear()
        else:
            self._flows.set()

    def close(self) -> None:
        """Take everything away."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(5.0)
        self._call(self._loop.stop)
        self._thread.join(5.0)
        self._loop.close()
        self._listener.close()

    async def _end(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for end in self._writers:
            end.transport.abort()
