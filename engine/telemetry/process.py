"""Memory of this process and of its host."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil

CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
CGROUP_USED = Path("/sys/fs/cgroup/memory.current")


@dataclass(frozen=True)
class HostMemory:
    """Memory this process may use, which a container can make less than the machine's."""

    total_bytes: int
    available_bytes: int


def rss_bytes() -> int:
    """Return the resident memory of this process."""
    return int(psutil.Process().memory_info().rss)


def host_memory() -> HostMemory:
    """Return the machine's memory, or the container's where that is the tighter limit."""
    machine = psutil.virtual_memory()
    limit, used = _read(CGROUP_LIMIT), _read(CGROUP_USED)
    if limit is None or used is None or limit >= machine.total:
        return HostMemory(machine.total, machine.available)
    return HostMemory(limit, min(machine.available, max(limit - used, 0)))


def _read(path: Path) -> int | None:
    """Read a cgroup number; None where there is none or it says `max`."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
