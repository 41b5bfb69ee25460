"""Ports of this machine that a test may listen on."""

from __future__ import annotations

import socket


def free_port() -> int:
    """Return a port of the local address that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
