"""A node other than that of rank 0: starts its ranks and waits for them, without the app."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from shlex import quote
from typing import TYPE_CHECKING

from fttui.engine.errors import TrainingFailed
from fttui.engine.run.files import last_lines
from fttui.engine.run.processes.node_end import recorded_node_end

from ..headless import Interrupts
from .place import STOPPED_CODE

if TYPE_CHECKING:
    from pathlib import Path

    from ...connection.engine_process import StartedEngine
    from ...connection.nodes import NodeLaunch

_POLL_S = 0.2
_LOG_LINES = 15


def nodes_root(root: Path) -> Path:
    """Return the folder for files of this node, for runs whose run folder is on another node."""
    return root / ".nodes"


def follow_node(
    engine: StartedEngine, launch: NodeLaunch, devices: int, say: Callable[[str], None]
) -> int:
    """Wait until the ranks of this node end, and return the exit code of the run.

    Raises:
        TrainingFailed: they failed; the text has the end of their log, and the exit code is theirs.
    """
    first = launch.node * devices
    ranks = f"rank {first}" if devices == 1 else f"ranks {first} to {first + devices - 1}"
    say(f"node {launch.node} of {launch.nodes}: {ranks}; logs in {engine.run.logs}")
    say(f"the run itself is on {launch.host}: fttui attach {quote(launch.host + ':')}")
    interrupts = Interrupts(engine)
    try:
        while engine.process.poll() is None:
            for line in interrupts.news():
                say(line)
            with suppress(subprocess.TimeoutExpired):
                engine.process.wait(_POLL_S)
    finally:
        interrupts.restore()
    return _exit_code(engine)


def _exit_code(engine: StartedEngine) -> int:
    """Return 0 if the ranks ended in order, even if a signal ended torchrun; see `STOPPED_CODE`.

    Raises:
        TrainingFailed: they failed.
    """
    code, recorded = engine.process.returncode, recorded_node_end(engine.run)
    if recorded == STOPPED_CODE:
        return STOPPED_CODE
    if recorded == 0 or (recorded is None and code in (0, -signal.SIGINT)):
        return 0
    tail = "\n".join(last_lines(engine.run.engine_log, _LOG_LINES)) or "(it printed nothing)"
    error = TrainingFailed(
        f"the ranks of this node ended with exit code {recorded or code}; the end of "
        f"{engine.run.engine_log}:\n{tail}"
    )
    error.exit_code = recorded or error.exit_code
    raise error
