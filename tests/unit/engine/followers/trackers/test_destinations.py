from __future__ import annotations

import sys
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from fttui.engine.config.schema import (
    AlertsConfig,
    BenchmarksConfig,
    EvalConfig,
    RunConfig,
    TrackingConfig,
)
from fttui.engine.config.sections.outward import AlertKind
from fttui.engine.core.lr_range import LrRange
from fttui.engine.errors import FttuiError
from fttui.engine.followers import launch, restarting
from fttui.engine.followers.run_config import config_of, tracking_of
from fttui.engine.followers.trackers.destinations import destination, facts_of, open_sink
from fttui.engine.run.journal_summary import JournalSummary
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.train.session_start import SessionStart
from tests.support.journaled import CONFIG, new_run

FOREIGN = f"{CONFIG}tracking: {{project: p, uri: 'http://evil'}}\nalerts: {{urls: [json://evil]}}\n"


def test_no_address_comes_from_a_run_folder(tmp_path: Path) -> None:
    run = new_run(tmp_path, FOREIGN)
    tracking = tracking_of(config_of(run))
    assert "evil" not in destination("mlflow", run, tracking, None).place
    fields = {*TrackingConfig.__struct_fields__, *AlertsConfig.__struct_fields__}
    assert not [name for name in fields if "uri" in name or "url" in name]


def test_a_moved_run_folder_keeps_its_event_files(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    tracking = TrackingConfig()
    before = destination("tensorboard", run, tracking, None)
    moved = RunDirectory(run.path.rename(tmp_path / "moved"))
    assert destination("tensorboard", moved, tracking, None) == before
    elsewhere = msgspec.structs.replace(tracking, folder=str(tmp_path))
    assert destination("tensorboard", moved, elsewhere, None) != before


def test_the_key_of_a_run_is_its_own(tmp_path: Path) -> None:
    one, other = new_run(tmp_path), new_run(tmp_path)
    assert facts_of(one) == facts_of(one)
    assert facts_of(one).key != facts_of(other).key
    assert facts_of(one).config["train"] == {"steps": 12, "lr": 0.1}


def test_what_is_shown_of_a_server_has_no_password(tmp_path: Path) -> None:
    goal = destination("mlflow", new_run(tmp_path), TrackingConfig(), "http://ann:hunter2@host")
    assert goal.shown == "fttui in http://***@host"


def test_a_missing_library_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(FttuiError, match=r"pip install 'fttui\[wandb\]'"):
        open_sink("wandb", new_run(tmp_path), TrackingConfig(), lambda _why, _n: None, None)


def test_each_tracker_gets_one_process_and_messages_need_an_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []

    def start(_run: RunDirectory, module: str, words: list[str], *, log: str) -> None:
        assert module == restarting.__name__
        started.append([log, *(word for word in words if not word.startswith("/"))])

    monkeypatch.setattr(launch, "start_in_background", start)
    monkeypatch.setattr(launch, "has_addresses", lambda: False)
    config = msgspec.convert(
        {
            "model": {"id": "m"},
            "data": {"train": "a.jsonl"},
            "train": {"steps": 1},
            "trackers": ["wandb", "mlflow", "wandb"],
        },
        RunConfig,
    )
    launch.launch_followers(new_run(tmp_path), config)
    assert started == [
        [f"tracker-{name}.log", name, launch._TRACKERS, "--to", name, "--follow", "--wait"]
        for name in ("wandb", "mlflow")
    ]
    started.clear()
    monkeypatch.setattr(launch, "has_addresses", lambda: True)
    monkeypatch.setattr(launch, "find_spec", lambda _name: object())
    launch.launch_followers(new_run(tmp_path), msgspec.structs.replace(config, trackers=[]))
    assert started == [["alerts.log", "alerts", launch._ALERTS]]
    started.clear()
    muted = AlertsConfig(mute=list(get_args(AlertKind)))
    quiet = msgspec.structs.replace(config, trackers=[], alerts=muted)
    launch.launch_followers(new_run(tmp_path), quiet)
    assert started == []
    monkeypatch.setattr(launch, "has_addresses", lambda: False)
    measured = msgspec.structs.replace(
        config, trackers=[], eval=EvalConfig(benchmarks=BenchmarksConfig(tasks=["words"]))
    )
    launch.launch_followers(new_run(tmp_path), measured)
    assert started == [["benchmarks.log", "benchmarks", launch._BENCHMARKS]]


def test_a_process_that_cannot_be_started_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("no processes left")

    monkeypatch.setattr(launch, "start_in_background", refuse)
    monkeypatch.setattr(launch, "has_addresses", lambda: True)
    monkeypatch.setattr(launch, "find_spec", lambda _name: object())
    config = msgspec.convert(
        {"model": {"id": "m"}, "data": {"train": "a"}, "train": {"steps": 1}}, RunConfig
    )
    launch.launch_followers(new_run(tmp_path), config)
    assert "no processes left" in caplog.text


def test_a_measurement_is_followed_by_nobody(tmp_path: Path) -> None:
    run, history = new_run(tmp_path), JournalSummary()
    assert not SessionStart(run, history).measures_only
    assert SessionStart(run, history, profile_steps=3).measures_only
    assert SessionStart(run, history, lr_range=LrRange(1e-6, 1e-3, 10)).measures_only
