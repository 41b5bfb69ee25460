from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fttui.tui.cli.headless import Interrupts
from fttui.tui.connection.engine_process import StartedEngine
from tests.support.engine_double import make_run


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_what_would_end_the_client_stops_the_engine_instead(
    tmp_path: Path, ending: signal.Signals
) -> None:
    # Whatever starts the tests in the background may have SIGINT ignored, which is inherited.
    waits = "from signal import *; signal(SIGINT, SIG_DFL); print(flush=True); pause()"
    engine = subprocess.Popen([sys.executable, "-c", waits], stdout=subprocess.PIPE)
    assert engine.stdout is not None
    engine.stdout.readline()
    inherited = signal.signal(ending, signal.SIG_DFL)
    interrupts = Interrupts(StartedEngine(make_run(tmp_path), engine, None))
    try:
        os.kill(os.getpid(), ending)
        assert list(interrupts.news()) == ["saving and stopping; Ctrl-C again stops now"]
        assert engine.wait(timeout=60) != 0
    finally:
        engine.kill()
        interrupts.restore()
        left = signal.signal(ending, inherited)
    assert left is signal.SIG_DFL
