from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os, sys
from fttui.engine.standby import _write_to

os.dup2(2, 1)
print("a warning of an import", file=sys.stderr, flush=True)
_write_to(os.open("/dev/full", os.O_WRONLY))
sys.exit(7)
"""


def test_a_full_disk_leaves_the_engine_to_report_it(tmp_path: Path) -> None:
    with (tmp_path / "printed").open("w+b") as printed:
        code = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            stdin=subprocess.PIPE,
            stderr=printed,
            check=False,
            timeout=60,
        ).returncode
    assert code == 7


WAITING = """
import sys
from fttui.engine import standby

standby.import_training = lambda task, proceed: print("waits", flush=True)
sys.exit(standby.stand_by("sft"))
"""
COMMAND = f"""
import socket, subprocess, sys, time

there, here = socket.socketpair()
subprocess.Popen([sys.executable, "-c", {WAITING!r}], stdin=here, start_new_session=True)
here.close()
time.sleep(600)
"""


def test_it_ends_when_the_command_that_started_it_is_killed() -> None:
    command = subprocess.Popen([sys.executable, "-c", COMMAND], stdout=subprocess.PIPE)
    assert command.stdout is not None
    assert command.stdout.readline() == b"waits\n"
    command.kill()
    assert command.stdout.read() == b"", "read until the process that holds the other end is gone"
    command.wait()
