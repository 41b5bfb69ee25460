"""A process that ends with its parent."""

from __future__ import annotations

import subprocess
import sys

from fttui.engine.run.files import process_started
from tests.support.waiting import until

CHILD = """
import subprocess, sys, time
from fttui.engine.run.processes.parent import end_with_parent
end_with_parent({parent})
inner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(inner.pid, flush=True)
time.sleep(60)
"""
PARENT = """
import os, subprocess, sys
code = sys.argv[1].replace("{parent}", str(os.getpid()))
child = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
print(child.pid, flush=True)
child.wait()
"""


def test_it_ends_with_what_it_started() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, CHILD], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    child, inner = (int(parent.stdout.readline()) for _ in range(2))
    assert process_started(child)
    assert process_started(inner)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    until(lambda: process_started(child) is None and process_started(inner) is None, timeout_s=10)
