"""Machines this user has attached to, so that the list of runs can show theirs."""

from __future__ import annotations

from contextlib import suppress

from fttui.engine.run.files import write_atomically
from fttui.engine.run.known import state_folder

MOST = 20


def known_hosts() -> list[str]:
    """Host names as they were typed, the newest first."""
    try:
        return (state_folder() / "hosts").read_text(encoding="utf-8").split()[:MOST]
    except (OSError, RuntimeError, UnicodeDecodeError):
        return []


def remember_host(host: str) -> None:
    """Note a host; a home that cannot be written only costs the note."""
    hosts = [host, *(known for known in known_hosts() if known != host)][:MOST]
    with suppress(OSError, RuntimeError):
        state_folder().mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(state_folder() / "hosts", "\n".join(hosts).encode())
