"""Delivery to the real libraries: everything arrives, once, however often the process is killed."""

from __future__ import annotations

import importlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fttui.engine.protocol.events import Record, RolledBack, RunEnded, RunStarted, SampleGenerated
from fttui.engine.protocol.states import RunState
from fttui.engine.run.processes.marks import EngineMark, ProcessMark, write_mark
from tests.support.journaled import CONFIG, new_run, step, write_journal
from tests.support.ports import free_port

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(400)]
MODULE = "fttui.engine.followers.trackers"
PROJECT = "outage"
STEPS, BACK_FROM, BACK_TO = 240, 150, 100
EXPECTED = {1: list(range(1, BACK_FROM + 1)), 2: list(range(BACK_TO + 1, STEPS + 1))}
SECRET = "0123456789abcdef0123456789abcdef01234567"

Found = dict[int, list[int]]
"""The steps of the training loss, by timeline, as the tracker has them."""


def journal() -> list[Record]:
    named: dict[str, Any] = {"name": "x", "host": "h", "task": "sft", "model": "m"}
    counts: dict[str, Any] = {"incarnation": 1, "pid": 1, "world_size": 1, "total_steps": STEPS}
    batch: dict[str, Any] = {"micro_batch_size": 1, "accumulation": 1, "devices": ["cpu"]}
    told: list[tuple[int, int, Any]] = [(0, 1, RunStarted(**named, **counts, **batch))]
    told += [(number, 1, step(2 / number)) for number in EXPECTED[1]]
    told += [(BACK_FROM, 1, SampleGenerated(prompt="hi", text="there"))]
    timelines: dict[str, Any] = {"old_timeline": 1, "new_timeline": 2}
    told += [
        (BACK_TO, 2, RolledBack(checkpoint="c", from_step=BACK_FROM, to_step=BACK_TO, **timelines))
    ]
    told += [(number, 2, step(1 / number)) for number in EXPECTED[2]]
    told += [(STEPS, 2, RunEnded(state=RunState.FINISHED, exit_code=0))]
    now = time.time()
    return [
        Record(seq=seq, time=now + seq / 100, step=at, timeline=timeline, event=event)
        for seq, (at, timeline, event) in enumerate(told, 1)
    ]


class Outage:
    """A run whose journal grows, and processes that deliver it and are killed."""

    def __init__(self, folder: Path, tracker: str, uri: str | None = None) -> None:
        self.folder, self.tracker = folder, tracker
        self.run = new_run(folder / "runs", f"{CONFIG}tracking: {{project: {PROJECT}}}\n")
        self.uri = uri or f"sqlite:///{folder}/ml.db"
        self.environment = {
            **os.environ,
            "WANDB_MODE": "offline",
            "WANDB_API_KEY": SECRET,
            "WANDB_DIR": str(folder),
            "SWANLAB_MODE": "offline",
            "TRACKIO_DIR": str(folder / "trackio"),
            "MLFLOW_TRACKING_URI": self.uri,
        }

    def start(self, *options: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-P", "-m", MODULE, str(self.run.path), "--to", self.tracker]
        return subprocess.Popen(
            [*command, *options],
            env=self.environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def deliver(self) -> str:
        process = self.start()
        said, _ = process.communicate(timeout=120)
        assert process.returncode == 0, said
        return said

    def suffer(self, kills: int, chance: random.Random, longest_s: float) -> None:
        """Let the journal grow while processes follow it and are killed at any moment."""
        write_mark(self.run.engine, _this_process())
        every = journal()
        parts = [
            every[n * len(every) // kills : (n + 1) * len(every) // kills] for n in range(kills)
        ]
        for part in parts:
            process = self.start("--follow")
            write_journal(self.run, part[: len(part) // 2])
            time.sleep(chance.uniform(0.3, longest_s))
            write_journal(self.run, part[len(part) // 2 :])
            time.sleep(chance.uniform(0, 0.3))
            process.send_signal(signal.SIGKILL)
            process.communicate()
        self.run.engine.unlink()

    def secrets(self) -> list[str]:
        files = [file for file in self.run.path.rglob("*") if file.is_file()]
        return [file.name for file in files if SECRET.encode() in file.read_bytes()]


def _this_process() -> EngineMark:
    mine = ProcessMark.current()
    return EngineMark(pid=mine.pid, started=mine.started, identity=mine.identity)


def in_tensorboard(outage: Outage) -> Found:
    name = "tensorboard.backend.event_processing.event_accumulator"
    accumulator = pytest.importorskip(name).EventAccumulator
    found: Found = {}
    for folder in sorted((outage.run.path / "tensorboard").iterdir()):
        events = accumulator(str(folder), size_guidance={"scalars": 0}, purge_orphaned_data=False)
        events.Reload()
        number = int(folder.name.removeprefix("timeline-"))
        found[number] = [event.step for event in events.Scalars("train/loss")]
    return found


def in_mlflow(outage: Outage) -> Found:
    client = importlib.import_module("mlflow").MlflowClient(tracking_uri=outage.uri)
    experiment = client.get_experiment_by_name(PROJECT)
    found: Found = {}
    runs = client.search_runs([experiment.experiment_id])
    assert len(runs) == 3, "one for each timeline, and one for the whole run"
    for one in runs:
        if number := one.data.tags.get("fttui.timeline"):
            history = client.get_metric_history(one.info.run_id, "train/loss")
            found[int(number)] = [point.step for point in history]
            assert one.data.params["train.lr"] == "0.1"
            assert one.info.status == "FINISHED"
    return found


def in_trackio(outage: Outage) -> Found:
    code = (
        "import json, sys\n"
        "from trackio.sqlite_storage import SQLiteStorage as S\n"
        "runs = S.get_run_records(sys.argv[1])\n"
        "logs = {r['name']: S.get_logs(sys.argv[1], r['name'], run_id=r['id']) for r in runs}\n"
        "steps = {n: [x['step'] for x in l if 'train/loss' in x] for n, l in logs.items()}\n"
        "print(json.dumps(steps))\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", code, PROJECT],
        env=outage.environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    found = json.loads(said.splitlines()[-1])
    return {int(name.rpartition(" ")[2]): steps for name, steps in found.items()}


def in_wandb(outage: Outage) -> Found:
    from fttui.engine.followers.trackers.sinks.wandb_files import payloads

    record = importlib.import_module("wandb.proto.wandb_internal_pb2").Record
    found: Found = {}
    for file in sorted(outage.folder.glob("wandb/offline-run-*/run-*.wandb")):
        number = int(file.stem.rpartition("-")[2])
        for payload in payloads(file.read_bytes()):
            one = record.FromString(payload)
            values = {item.nested_key[0]: item.value_json for item in one.history.item}
            if "train/loss" in values:
                found.setdefault(number, []).append(int(values["global_step"]))
    return found


TRACKERS: dict[str, tuple[str, Callable[[Outage], Found], float]] = {
    "tensorboard": ("tensorboardX", in_tensorboard, 4.0),
    "mlflow": ("mlflow", in_mlflow, 9.0),
    "trackio": ("trackio", in_trackio, 4.0),
    "wandb": ("wandb", in_wandb, 7.0),
}


@pytest.mark.parametrize("tracker", TRACKERS)
def test_nothing_is_missing_and_nothing_is_there_twice(tracker: str, tmp_path: Path) -> None:
    package, read, longest_s = TRACKERS[tracker]
    pytest.importorskip(package)
    outage = Outage(tmp_path, tracker)
    outage.suffer(8, random.Random(tracker), longest_s)
    outage.deliver()
    found = {number: sorted(steps) for number, steps in read(outage).items()}
    assert found == EXPECTED
    assert "0 records delivered" in outage.deliver()
    assert {number: sorted(steps) for number, steps in read(outage).items()} == EXPECTED
    assert outage.secrets() == []


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The address of an MLflow server on this machine."""
    pytest.importorskip("mlflow.server")
    port = free_port()
    store = ["--backend-store-uri", f"sqlite:///{tmp_path}/server.db"]
    command = [sys.executable, "-m", "mlflow", "server", *store, "--host", "127.0.0.1"]
    with open(tmp_path / "server.log", "wb") as log:
        process = subprocess.Popen(
            [*command, "--port", str(port), "--workers", "1"],
            stdout=log, stderr=log, cwd=tmp_path, start_new_session=True,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_an_mlflow_server_gets_each_record_once(server: str, tmp_path: Path) -> None:
    outage = Outage(tmp_path, "mlflow", server)
    outage.suffer(4, random.Random(0), 12.0)
    outage.deliver()
    assert {number: sorted(steps) for number, steps in in_mlflow(outage).items()} == EXPECTED


def test_a_server_that_is_not_there_is_one_line_and_an_error(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    outage = Outage(tmp_path, "mlflow", "http://ann:hunter2@127.0.0.1:9")
    write_journal(outage.run, journal())
    process = outage.start()
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 1
    assert said.count("cannot deliver") == 1
    assert "hunter2" not in said
    assert "what is missing is delivered the next time" in said


def test_swanlab_takes_everything_offline(tmp_path: Path) -> None:
    pytest.importorskip("swanlab")
    outage = Outage(tmp_path, "swanlab")
    write_journal(outage.run, journal())
    assert f"{len(journal())} records delivered" in outage.deliver()
    assert len(list((tmp_path / "swanlog").glob("run-*"))) == 2


@pytest.mark.parametrize(
    ("tracker", "mode"), [("wandb", "WANDB_MODE"), ("swanlab", "SWANLAB_MODE")]
)
def test_a_login_that_is_missing_never_waits(tracker: str, mode: str, tmp_path: Path) -> None:
    pytest.importorskip(tracker)
    outage = Outage(tmp_path, tracker)
    write_journal(outage.run, journal())
    outage.environment |= {mode: "online", "HOME": str(tmp_path), "NETRC": "/dev/null"}
    outage.environment.pop("WANDB_API_KEY")
    outage.environment |= {"WANDB_BASE_URL": "http://127.0.0.1:9"}
    began = time.monotonic()
    process = outage.start()
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 1, said
    assert time.monotonic() - began < 200
    assert "cannot deliver" in said
