"""Names of remote hosts: those attached to before, and those in the user's ssh configuration."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from glob import glob
from pathlib import Path

from fttui.engine.run.files import write_atomically
from fttui.engine.run.known_runs import state_folder

MOST = 20
_DEEPEST_INCLUDE = 16
"""The depth of nested `Include`s at which ssh stops, too."""
_WILD = frozenset("*?!")


def known_hosts() -> list[str]:
    """Return the hosts attached to before as they were typed, the newest first.

    They are at most `MOST`, and none if the list cannot be read.
    """
    try:
        return (state_folder() / "hosts").read_text(encoding="utf-8").split()[:MOST]
    except (OSError, RuntimeError, UnicodeDecodeError):
        return []


def is_known_host(name: str) -> bool:
    """Return whether a word is a host that was attached to before, or a `Host` in ~/.ssh/config.

    The user before the @ is not part of the comparison with hosts attached to before.
    """
    attached = {known.rpartition("@")[2] for known in known_hosts()}
    return name in attached or name in _configured(os.path.expanduser("~/.ssh/config"))


def _configured(file: str, depth: int = 0) -> Iterator[str]:
    """Yield the `Host` names, without patterns, of an ssh configuration and what it includes."""
    try:
        lines = Path(file).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        keyword, *values = line.replace("=", " ", 1).split() or [""]
        if keyword.lower() == "host":
            yield from (value for value in values if not _WILD & set(value))
        elif keyword.lower() == "include" and depth < _DEEPEST_INCLUDE:
            for value in values:
                folder = os.path.expanduser("~/.ssh")
                for included in sorted(glob(os.path.join(folder, os.path.expanduser(value)))):
                    yield from _configured(included, depth + 1)


def remember_host(host: str) -> None:
    """Remember a host for the next time, or do nothing if the home folder cannot be written."""
    hosts = [host, *(known for known in known_hosts() if known != host)][:MOST]
    with suppress(OSError, RuntimeError):
        state_folder().mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(state_folder() / "hosts", "\n".join(hosts).encode())
