"""A link that can be cut: a proxy between a viewer and the hub's request socket."""

from __future__ import annotations

import selectors
import socket
import threading
from pathlib import Path


class CuttableLink:
    """Forwards one connection and drops it after so many bytes in one direction."""

    def __init__(self, folder: Path, hub_socket: Path) -> None:
        self.path = folder / "cut"
        self._hub_socket = hub_socket
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen()

    @property
    def address(self) -> str:
        """Where the viewer connects."""
        return f"ipc://{self.path}"

    def cut_after(self, to_hub: int | None, to_viewer: int | None) -> threading.Thread:
        """Serve the next connection; None never cuts. The thread ends when the link is gone."""
        thread = threading.Thread(target=self._forward, args=(to_hub, to_viewer), daemon=True)
        thread.start()
        return thread

    def _forward(self, to_hub: int | None, to_viewer: int | None) -> None:
        viewer, _ = self._listener.accept()
        hub = socket.socket(socket.AF_UNIX)
        hub.connect(str(self._hub_socket))
        left = {viewer: to_hub, hub: to_viewer}
        with viewer, hub, selectors.DefaultSelector() as ready:
            for side, other in ((viewer, hub), (hub, viewer)):
                ready.register(side, selectors.EVENT_READ, (side, other))
            while True:
                for key, _ in ready.select():
                    side, other = key.data
                    budget = left[side]
                    data = side.recv(65536 if budget is None else max(1, min(budget, 65536)))
                    if budget == 0 or not data:
                        return
                    other.sendall(data)
                    if budget is not None:
                        left[side] = budget - len(data)
                        if left[side] == 0:
                            return

    def close(self) -> None:
        """Take the socket away."""
        self._listener.close()
        self.path.unlink(missing_ok=True)
