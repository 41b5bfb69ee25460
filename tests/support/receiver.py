"""A web hook on this machine that keeps what it is sent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any


class Receiver:
    """The messages that arrived, and how it answers."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.status = 200
        self.url = ""


@contextmanager
def receiver() -> Iterator[Receiver]:
    """A receiver whose `url` is an apprise address."""
    kept = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if kept.status == 200:
                kept.messages.append(json.loads(body))
            self.send_response(kept.status)
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            """Nothing is printed."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    kept.url = f"json://ann:hunter2@127.0.0.1:{server.server_port}/hook"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield kept
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
