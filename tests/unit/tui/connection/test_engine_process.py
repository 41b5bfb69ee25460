from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fttui.engine.config.load import LoadedConfig, load_config
from fttui.engine.errors import CheckpointError, FttuiError
from fttui.engine.run.checkpoint_store import CheckpointStore, FileEntry, Manifest
from fttui.engine.run.files import hash_file
from fttui.engine.run.processes.held_signals import stop_signals_held
from fttui.engine.run.run_dir import RunDirectory
from fttui.tui.connection.engine_process import (
    EngineAhead,
    EngineDied,
    checkpoint_to_resume,
    new_run,
    replace_config,
    start_engine,
    start_lock,
)
from tests.support.engine_double import EngineDouble, make_run

CONFIG = """\
name: tiny
model: {id: some/model}
data: {train: some/data}
train: {steps: 5}
"""


def loaded(tmp_path: Path, *overrides: str) -> tuple[Path, LoadedConfig]:
    path = tmp_path / "tiny.yaml"
    path.write_text(CONFIG)
    return path, load_config(path, overrides)


def checkpoint(run: RunDirectory, name: str, step: int) -> None:
    ledger = CheckpointStore(run)
    ledger.path(name).mkdir()
    weights = ledger.path(name) / "weights"
    weights.write_bytes(b"four")
    ledger.commit(
        Manifest(
            name=name,
            step=step,
            timeline=1,
            time=float(step),
            world_size=1,
            incarnation=1,
            files={"weights": FileEntry(size_bytes=4, sha256=hash_file(weights))},
        )
    )


def test_a_new_run_holds_both_configurations(tmp_path: Path) -> None:
    path, config = loaded(tmp_path, "train.lr=1e-3")
    run = new_run(tmp_path / "runs", path, config, ["train.lr=1e-3"])
    assert run.id.startswith("tiny-")
    assert run.source_config.read_text() == CONFIG
    assert "lr: 0.001" in run.config.read_text()
    assert run.identity().overrides == ["train.lr=1e-3"]


def test_a_damaged_checkpoint_is_refused_before_an_engine_starts(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    checkpoint(run, "step-10", 10)
    checkpoint(run, "step-20", 20)
    (CheckpointStore(run).path("step-20") / "weights").write_bytes(b"four, no, five")
    with pytest.raises(CheckpointError, match=r"step-20: weights .*choose another one: step-10"):
        checkpoint_to_resume(run, None)


def test_another_configuration_keeps_the_one_before(tmp_path: Path) -> None:
    path, config = loaded(tmp_path)
    run = new_run(tmp_path / "runs", path, config, [])
    first = run.config.read_text()
    replace_config(run, config)
    assert list(run.path.glob("config.[0-9]*.yaml")) == []
    for steps in (6, 7):
        replace_config(run, loaded(tmp_path, f"train.steps={steps}")[1])
    assert (run.path / "config.1.yaml").read_text() == first
    assert "steps: 6" in (run.path / "config.2.yaml").read_text()
    assert "steps: 7" in run.config.read_text()


def test_resuming_needs_a_complete_checkpoint_and_no_engine(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    assert checkpoint_to_resume(run, None) is None, "what trained nothing begins"
    with pytest.raises(CheckpointError, match="no complete checkpoint '10'"):
        checkpoint_to_resume(run, "10")
    engine = EngineDouble(run)
    engine.start()
    engine.train(3)
    engine.end()
    run.engine.unlink(missing_ok=True)
    with pytest.raises(CheckpointError, match="no complete checkpoint to resume"):
        checkpoint_to_resume(run, None)
    checkpoint(run, "step-10", 10)
    checkpoint(run, "step-20", 20)
    assert checkpoint_to_resume(run, None) == "step-20"
    assert checkpoint_to_resume(run, "10") == "step-10"
    with pytest.raises(CheckpointError, match="step-10, step-20"):
        checkpoint_to_resume(run, "15")
    EngineDouble(run).mark()
    with pytest.raises(FttuiError, match="still training"):
        checkpoint_to_resume(run, None)


def test_an_engine_that_dies_at_once_is_told_with_its_log(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    engine = start_engine(run, 1, program="fttui.no_such_program")
    with pytest.raises(EngineDied, match="no_such_program") as died:
        engine.wait_until_served(30)
    assert died.value.exit_code == 1


def test_more_than_one_device_goes_through_torchrun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[list[str]] = []

    class Recorder:
        def __init__(self, command: list[str], **_: object) -> None:
            called.append(command)

    monkeypatch.setattr("fttui.tui.connection.engine_process.subprocess.Popen", Recorder)
    run = make_run(tmp_path)
    start_engine(run, 1, "step-3")
    start_engine(run, 2)
    start_engine(run, 1, restarts=3)
    assert called[0] == [sys.executable, "-m", "fttui.engine", str(run.path), "--from", "step-3"]
    assert called[1][1:6] == [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    assert called[1][6:] == ["--max-restarts", "0", "-m", "fttui.engine", str(run.path)]
    assert called[2][5:8] == ["1", "--max-restarts", "3"]


def test_two_starts_of_one_run_do_not_mix(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    with (
        start_lock(run),
        pytest.raises(FttuiError, match="another process is starting"),
        start_lock(run),
    ):
        pass
    with start_lock(run):
        pass


def test_what_a_launcher_left_in_the_environment_is_not_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = {
        "RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4",
        "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", "GROUP_RANK": "0",
        "TORCHELASTIC_RUN_ID": "x", "TORCHELASTIC_RESTART_COUNT": "2",
    }  # fmt: skip
    for name, value in left.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    seen: list[dict[str, str]] = []

    class Recorder:
        def __init__(self, command: list[str], *, env: dict[str, str], **_: object) -> None:
            seen.append(env)

    monkeypatch.setattr("fttui.tui.connection.engine_process.subprocess.Popen", Recorder)
    start_engine(make_run(tmp_path), 1)
    assert not left.keys() & seen[0].keys()
    assert seen[0]["CUDA_VISIBLE_DEVICES"] == "1"


def test_the_run_of_a_script_is_not_resumed_by_an_engine(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    identity = msgspec.structs.replace(run.identity(), script="python train.py --lr 1e-4")
    run.write(run.identity_file, msgspec.json.encode(identity))
    with pytest.raises(FttuiError, match=r"start it again: python train\.py --lr 1e-4"):
        checkpoint_to_resume(run, None)


PROGRAM = """
import json, os, socket, sys
print("before", flush=True)
asked = socket.socket(fileno=os.dup(0))
message, files, _, _ = socket.recv_fds(asked, 65536, 1)
if message:
    os.write(files[0], " ".join(["task", sys.argv[-1], *json.loads(message)]).encode())
"""


def ahead_of(monkeypatch: pytest.MonkeyPatch, program: str) -> EngineAhead:
    """Return an engine ahead that runs `program` with the task as its argument."""
    popen = subprocess.Popen

    def started(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        if "fttui.engine.standby" in command:
            command = [sys.executable, "-c", program, command[-1]]
        return popen(command, **options)

    monkeypatch.setattr("fttui.tui.connection.engine_process.subprocess.Popen", started)
    return EngineAhead()


def test_a_process_that_imports_ahead_becomes_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path)
    with ahead_of(monkeypatch, PROGRAM) as ahead:
        ahead.begin(loaded(tmp_path)[1].config)
        engine = start_engine(run, 1, "step-3", options=["--paused"], ahead=ahead)
    assert engine.process.wait(30) == 0
    wanted = f"task sft {run.path} --paused --from step-3"
    assert run.engine_log.read_text() == wanted


def test_a_process_that_imports_ahead_ends_with_a_refused_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ahead_of(monkeypatch, "import time; time.sleep(60)") as ahead:
        ahead.begin(loaded(tmp_path)[1].config)
        process = ahead._process
        assert process is not None
        assert process.poll() is None
    assert process.returncode == -9


def test_if_the_process_that_imports_ahead_is_gone_another_one_is_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path)
    with ahead_of(monkeypatch, "raise SystemExit(1)") as ahead:
        ahead.begin(loaded(tmp_path)[1].config)
        assert ahead._process is not None
        ahead._process.wait(30)
        engine = start_engine(run, 1, program="fttui.no_such_program", ahead=ahead)
    engine.process.wait(30)
    assert "no_such_program" in run.engine_log.read_text()


def test_runs_of_several_processes_import_nothing_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ahead_of(monkeypatch, "raise SystemExit(1)") as ahead:
        for override in ("train.devices=2", "train.restarts=1"):
            ahead.begin(loaded(tmp_path, override)[1].config)
            assert ahead._process is None


def test_a_run_starts_although_nothing_can_be_imported_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fttui.tui.connection.engine_process.tempfile.TemporaryFile", full)
    with EngineAhead() as ahead:
        ahead.begin(loaded(tmp_path)[1].config)
        assert ahead.take(["--paused"], 1) is None


def test_a_stop_before_the_handlers_are_installed_ends_no_engine_silently(tmp_path: Path) -> None:
    program = tmp_path / "late.py"
    program.write_text(
        "import sys\n"
        "from fttui.engine.train.signals import StopSignals\n"
        "signals = StopSignals()\n"
        "print('importing', flush=True)\n"
        "sys.stdin.read()\n"
        "signals.install()\n"
        "print('stops:', signals.count)\n"
    )
    with stop_signals_held():
        engine = subprocess.Popen(
            [sys.executable, program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
    assert engine.stdout is not None
    assert engine.stdout.readline() == "importing\n"
    engine.send_signal(signal.SIGINT)
    assert engine.communicate("", timeout=30)[0] == "stops: 1\n"
