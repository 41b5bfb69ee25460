"""A model hub on this machine: as much of its interface as an upload needs."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class LocalHub:
    """What was created and uploaded."""

    def __init__(self) -> None:
        self.url = ""
        self.repositories: dict[str, bool] = {}
        """Whether each is private."""
        self.files: dict[str, bytes] = {}
        self.tokens: set[str] = set()
        self.refuse = False


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: LocalHub

    def log_message(self, *_: Any) -> None:
        pass

    def _answer(self, content: Any, status: int = 200) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def do_GET(self) -> None:
        self._answer({"id": "me/tiny", "siblings": [], "sha": "0" * 40})

    def do_PUT(self) -> None:
        self.hub.files[self.path.removeprefix("/lfs/")] = self._body()
        self._answer({})

    def do_POST(self) -> None:
        body = self._body()
        if token := self.headers.get("Authorization"):
            self.hub.tokens.add(token)
        if self.hub.refuse:
            self._answer({"error": "the repository is not yours"}, 403)
        elif self.path == "/api/repos/create":
            asked = json.loads(body)
            owner = asked.get("organization") or "me"
            name = f"{owner}/{asked['name']}"
            private = asked.get("private") or asked.get("visibility") == "private"
            self.hub.repositories[name] = bool(private)
            self._answer({"url": f"{self.hub.url}/{name}", "name": name, "id": name})
        elif "/preupload/" in self.path:
            self._answer({"files": [_mode(one["path"]) for one in json.loads(body)["files"]]})
        elif self.path.endswith("/info/lfs/objects/batch"):
            objects = [self._upload(one) for one in json.loads(body)["objects"]]
            self._answer({"transfer": "basic", "objects": objects})
        elif "/commit/" in self.path:
            self._commit([json.loads(line) for line in body.splitlines() if line])
        else:
            self._answer({})

    def _upload(self, one: dict[str, Any]) -> dict[str, Any]:
        return one | {"actions": {"upload": {"href": f"{self.hub.url}/lfs/{one['oid']}"}}}

    def _commit(self, lines: list[dict[str, Any]]) -> None:
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                self.hub.files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                self.hub.files[value["path"]] = self.hub.files.pop(value["oid"])
        url = f"{self.hub.url}/me/tiny/commit/{'1' * 40}"
        self._answer({"success": True, "commitOid": "1" * 40, "commitUrl": url})


def _mode(path: str) -> dict[str, Any]:
    large = path.endswith((".safetensors", ".gguf"))
    return {"path": path, "uploadMode": "lfs" if large else "regular", "shouldIgnore": False}


@contextmanager
def local_hub() -> Iterator[LocalHub]:
    """Serve a hub on a port of this machine."""
    hub = LocalHub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
