"""The process that conducts a race for the app, and the lock by which it is found."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fttui.engine.errors import FttuiError
from fttui.tui.connection.race.race_file import (
    conducted_by,
    interrupt_race,
    race_file,
    race_lock,
    read_race,
    store_race,
)
from fttui.tui.connection.race.race_process import last_words, start_race
from fttui.tui.view_model.race.race_state import RaceState, VariantState
from tests.support.engine_double import make_run

HOLD = """
import sys, time
from pathlib import Path
from fttui.engine.run.run_dir import RunDirectory
from fttui.tui.connection.race.race_file import race_lock
with race_lock(RunDirectory(Path(sys.argv[1]))):
    try:
        print("held", flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        sys.exit(7)
"""


@pytest.mark.parametrize("handling", [signal.SIG_DFL, signal.SIG_IGN], ids=["usual", "background"])
def test_one_process_conducts_a_race_and_it_can_be_interrupted(
    tmp_path: Path, handling: signal.Handlers
) -> None:
    run = make_run(tmp_path)
    assert conducted_by(run) is None
    assert not interrupt_race(run)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(run.path)],
        stdout=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, handling),
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    assert conducted_by(run) == holder.pid
    with pytest.raises(FttuiError, match="another process is running a race"), race_lock(run):
        pass
    assert interrupt_race(run)
    assert holder.wait(20) == 7
    holder.stdout.close()
    assert conducted_by(run) is None
    with race_lock(run):
        assert conducted_by(run) == os.getpid()


def test_a_look_at_the_lock_does_not_keep_a_race_from_beginning(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    with race_lock(run):
        pass
    with (run.path / "race.lock").open("rb") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        threading.Timer(0.1, lambda: fcntl.flock(looking, fcntl.LOCK_UN)).start()
        assert conducted_by(run) is None
        with race_lock(run):
            assert conducted_by(run) == os.getpid()


def test_a_holder_without_a_pid_is_known_and_never_signalled(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    with race_lock(run):
        (run.path / "race.lock").write_text("")
        assert conducted_by(run) == 0
        assert not interrupt_race(run)


@pytest.mark.parametrize(
    "state",
    [
        RaceState(words=["lr=fast,slow"], steps=10, by="loss"),
        RaceState(words=["lr=1,2"], steps=0, by="loss"),
        RaceState(words=["lr=1,2"], steps=10, by="loss", variants=[VariantState()]),
        RaceState(words=["lr=1,2"], steps=10, by="loss", variants=[VariantState()] * 2, kept=2),
    ],
)
def test_a_file_whose_parts_do_not_belong_together_is_damaged(
    tmp_path: Path, state: RaceState
) -> None:
    run = make_run(tmp_path)
    store_race(run, state)
    with pytest.raises(FttuiError, match=f"{race_file(run)} is damaged .* remove it"):
        read_race(run)


@pytest.mark.long
def test_a_race_that_cannot_begin_leaves_its_reason_in_the_log(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    process = start_race(run, "step-000009", ["momentum=1,2", "--yes"])
    assert process.wait(60) == 2
    (line,) = last_words(run)
    assert line.startswith("fttui: got 'momentum=1,2', expected a setting that can change")
