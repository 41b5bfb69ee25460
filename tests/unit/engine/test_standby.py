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
