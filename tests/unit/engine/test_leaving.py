"""A rank ends although a thread is still busy in foreign code."""

from __future__ import annotations

import os
import subprocess
import sys

LEAVING = """
import atexit, threading, time
from fttui.engine.__main__ import leave
atexit.register(lambda: print("cleaned up"))
threading.Thread(target=time.sleep, args=(60,)).start()
leave(7)
"""


def test_one_of_several_ranks_runs_what_is_registered_and_waits_for_no_thread() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEAVING],
        capture_output=True,
        text=True,
        timeout=30,
        env={**os.environ, "WORLD_SIZE": "2"},
        check=False,
    )
    assert (done.returncode, done.stdout) == (7, "cleaned up\n"), done.stderr
