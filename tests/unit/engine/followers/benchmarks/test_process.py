"""The process that measures checkpoints one after the other, over processes that only say so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fttui.engine.config.schema import BenchmarksConfig
from fttui.engine.followers.benchmarks import __main__ as process
from fttui.engine.followers.benchmarks.__main__ import CheckpointMeasurements, command_of
from fttui.engine.protocol.events import CheckpointSaved, Record
from fttui.engine.run.checkpoint_store import CheckpointStore, Manifest
from fttui.engine.run.run_dir import RunDirectory
from tests.support.journaled import CONFIG, new_run, write_journal

MEASURED = f"{CONFIG}eval: {{benchmarks: {{tasks: [words, other], base: true}}}}\n"


class Terminated:
    """A process that was asked to end, or not."""

    asked = False

    def wait(self, _seconds: float) -> bool:
        return self.asked


class Started:
    """Processes that were started, in place of real ones, and the exit code of each."""

    def __init__(self, codes: list[int]) -> None:
        self.codes = codes
        self.commands: list[list[str]] = []
        self.environments: list[dict[str, str]] = []

    def __call__(self, command: list[str], **options: Any) -> Any:
        self.commands.append(command)
        self.environments.append(options["env"])
        return self

    def wait(self, _timeout_s: float | None = None) -> int:
        return self.codes.pop(0)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = new_run(tmp_path, MEASURED)
    store = CheckpointStore(run)
    records = []
    for number, step in enumerate((2, 4, 6), 1):
        name = f"step-{step:06d}"
        store.make_folder(name)
        store.commit(
            Manifest(
                name=name, step=step, timeline=1, time=0, world_size=1, incarnation=1, files={},
                number=number,
            )
        )  # fmt: skip
        event = CheckpointSaved(name=name, size_bytes=1, seconds=0.1)
        records.append(Record(seq=number, time=0.0, step=step, timeline=1, event=event))
    write_journal(run, records)
    return run


def worked(
    run: RunDirectory, codes: list[int], monkeypatch: pytest.MonkeyPatch
) -> tuple[Started, list[str]]:
    started, said = Started(codes), list[str]()
    monkeypatch.setattr(process.subprocess, "Popen", started)  # type: ignore[attr-defined]
    terminated: Any = Terminated()
    CheckpointMeasurements(run, terminated, said.append).work()
    return started, said


def test_all_waiting_checkpoints_are_measured_after_the_end_of_the_run(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")
    started, said = worked(run, [0, 8, 0], monkeypatch)
    names = [command[command.index("--tasks") - 1] for command in started.commands]
    assert names == ["step-000002", "step-000004", "step-000006"]
    assert said == [f"measuring {name}" for name in names]
    assert all("--record-errors" in command for command in started.commands)
    assert not {"LOCAL_RANK", "MASTER_ADDR"} & set(started.environments[0])


def test_an_error_in_the_tasks_is_not_repeated(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, said = worked(run, [9], monkeypatch)
    assert len(started.commands) == 1
    assert said[-1] == "no further checkpoint is measured: the error would be the same"


def test_the_settings_become_the_options_of_the_process(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "r")
    plain = command_of(run, "step-2", BenchmarksConfig(tasks=["a", "b"]), base=True)
    assert plain[4:] == [
        "-m", "fttui.engine.bench", str(run.path), "step-2", "--tasks", "a,b", "--device", "auto",
        "--record-errors",
    ]  # fmt: skip
    settings = BenchmarksConfig(
        tasks=["a"], include="t", limit=5, fewshot=0, chat_template=True, base=True, batch=2
    )
    words = " ".join(command_of(run, "step-2", settings, base=True))
    for option in ("--include-path t", "--limit 5", "--fewshot 0", "--batch 2", "--chat-template"):
        assert option in words
    assert "--base" in words
    assert "--base" not in command_of(run, "step-2", settings, base=False)
