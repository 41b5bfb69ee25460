"""Run folders written by commit cb82d2e open, export, load bit for bit, and continue as before.

The module `make_runs` describes the folders of `tests/data/cb82d2e` and made them. Their file
`facts.json` holds what cb82d2e itself does with them: the state after loading, tensor by tensor,
and the steps that it trains from there.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fttui.engine.core.reports.anomaly_report import from_json
from fttui.engine.export.__main__ import main as export
from fttui.engine.protocol.codec import decode_record
from fttui.engine.protocol.events import LogEmitted, RunStarted, StepFinished
from fttui.engine.run.checkpoint_store import CheckpointStore
from fttui.engine.run.journal import FrameReader
from fttui.engine.run.run_dir import RunDirectory
from fttui.tui.app import FttuiApp
from fttui.tui.cli.main import main as fttui
from fttui.tui.connection.factory import open_session
from fttui.tui.view_model.connection_port import Link
from tests.support.matrix import in_part
from tests.support.training import Script, play, read_records
from tests.unit.tui.app.driving import text_of, until

from .states import RESTARTED, TIMED, counters, machine, tensor_hashes

DATA = Path(__file__).resolve().parents[1] / "data" / "cb82d2e"
FACTS: dict[str, Any] = json.loads((DATA / "facts.json").read_text())
RUNS = tuple(FACTS["runs"])
_NEW = "/spared"
"""End of the keys of optimizer groups that the earlier version did not have."""
CHECKPOINTS = [(run, name) for run in RUNS for name in FACTS["runs"][run]["checkpoints"]]
TOLERANCE = 1e-4
"""Relative difference allowed where other kernels add up in another order."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the runs with their model and data, in which the configurations name the copy."""
    root = tmp_path / "runs"
    shutil.copytree(DATA, root)
    for config in root.glob("*/config.yaml"):
        config.write_text(config.read_text().replace(FACTS["made_at"], str(root)))
        (config.parent / "reports").mkdir(exist_ok=True)  # git keeps no empty folder
        _adopt(config.parent)
    return root


def _adopt(run: Path) -> None:
    """Let the mark of the engine name this copy: a mark that names another folder is ignored."""
    file, folder = run / "engine.json", run.stat()
    mark = json.loads(file.read_text()) | {"place": f"{folder.st_dev}:{folder.st_ino}"}
    file.write_text(json.dumps(mark))


def _output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert fttui(arguments) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", RUNS)
def test_every_event_is_understood(name: str) -> None:
    payloads = list(FrameReader(RunDirectory(DATA / name).journal))
    records = [record for record in map(decode_record, payloads) if record is not None]
    assert len(records) == len(payloads)
    kinds = Counter(type(record.event).__name__ for record in records)
    assert kinds == FACTS["runs"][name]["kinds"]


@pytest.mark.parametrize("name", in_part(RUNS, ["sft"]))
async def test_the_app_opens_the_run_and_shows_every_screen(name: str, folder: Path) -> None:
    run = RunDirectory(folder / name)
    facts = FACTS["runs"][name]
    app = FttuiApp(open_session(run), run=run)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: app.state.link.link is Link.ENDED and not app._changed)
        view = app.state.run
        assert view.unknown == 0
        assert view.seq == sum(facts["kinds"].values())
        assert view.steps_seen == facts["kinds"]["StepFinished"]
        assert (view.step, view.total_steps, view.timeline) == (
            facts["summary"]["step"], facts["summary"]["total_steps"], facts["summary"]["timeline"],
        )  # fmt: skip
        assert len(view.anomalies) == facts["kinds"].get("AnomalyRaised", 0)
        assert {one.name for one in view.checkpoints} == set(facts["checkpoints"])
        for key in "123456":
            await pilot.press(key)
            await pilot.pause()
            assert name in text_of(app)
        assert app.state.fault == ""


async def test_the_app_shows_settings_marks_and_the_pinned_checkpoint(folder: Path) -> None:
    run = RunDirectory(folder / "sft")
    app = FttuiApp(open_session(run), run=run)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: app.state.link.link is Link.ENDED and not app._changed)
        view = app.state.run
    assert view.lr_scale == 0.25
    assert len(view.branches) == 2
    assert {"alarm", "checkpoint", "rollback", "note", "command", "eval"} <= {
        mark.kind for mark in view.marks
    }
    pinned = next(one for one in view.checkpoints if one.pinned)
    assert (pinned.name, pinned.note) == ("step-000006", "before the jump")


def test_the_runs_are_listed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed = json.loads(_output(capsys, "ls", "--json", "--runs-dir", str(folder)))
    found = {row["id"]: row for row in listed}
    for name in RUNS:
        expected = FACTS["runs"][name]["summary"]
        assert {key: found[name][key] for key in expected} == expected


@pytest.mark.parametrize("name", RUNS)
def test_the_journal_is_printed(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = _output(capsys, "events", "--runs-dir", str(folder), name).splitlines()
    printed = [json.loads(line) for line in lines]
    assert Counter(event["type"] for event in printed) == FACTS["runs"][name]["kinds"]


def test_the_reports_are_printed_and_load(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = sorted((folder / "sft" / "reports").glob("*.json"))
    assert [file.stem for file in files] == ["divergence-11", "nonfinite-5"]
    for file in files:
        report = from_json(file.read_bytes())
        assert (report.id, report.evidence.run) == (file.stem, "sft")
        assert report.evidence.current_loss is not None
        assert report.actions
        printed = _output(capsys, "report", "--runs-dir", str(folder), "sft", file.stem)
        assert printed.strip() == file.with_suffix(".md").read_text().strip()


@pytest.mark.long
def test_a_checkpoint_is_exported(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    adapter, merged = tmp_path / "adapter", tmp_path / "merged"
    runs = ("--runs-dir", str(folder))
    _output(capsys, "export", "--adapter", "--ema", "--out", str(adapter), *runs, "sft@6")
    assert (adapter / "adapter_model.safetensors").is_file()
    assert export([str(folder / "sft"), "last", "--kind", "merged", "--out", str(merged)]) == 0
    assert capsys.readouterr().out.count("written by an earlier version of fttui") == 1
    assert (merged / "model.safetensors").is_file()


@pytest.mark.parametrize(("name", "checkpoint"), CHECKPOINTS)
def test_a_checkpoint_loads_with_every_tensor_and_generator_equal(
    name: str, checkpoint: str, folder: Path
) -> None:
    """Resume, and save the live state as another checkpoint before any step."""
    run = RunDirectory(folder / name)
    store = CheckpointStore(run)
    store.verify(store.find(checkpoint))
    facts = FACTS["runs"][name]["checkpoints"][checkpoint]
    play(run, Script(early=["checkpoint", "stop no-save"]), resume=checkpoint)
    again = CheckpointStore(run).all()[-1]
    assert again.name != checkpoint
    live = run.checkpoints / again.name
    found = {key: value for key, value in tensor_hashes(live).items() if not key.endswith(_NEW)}
    assert found == facts["tensors"]
    _hold(facts["counters"], counters(live))


def _hold(old: Any, new: Any, path: str = "") -> None:
    """Compare every field that was there; new fields are allowed."""
    if isinstance(old, dict):
        assert isinstance(new, dict), path
        for key, value in old.items():
            if key not in TIMED + RESTARTED:
                assert key in new, f"{path}.{key} is gone"
                _hold(value, new[key], f"{path}.{key}")
    elif isinstance(old, list):
        assert len(new) == len(old), path
        for place, value in enumerate(old):
            _hold(value, new[place], f"{path}[{place}]")
    else:
        assert new == old, path


@pytest.mark.parametrize("name", RUNS)
def test_the_run_continues_as_before(name: str, folder: Path) -> None:
    """Equal to the last bit on the machine of the facts, within a tolerance on any other."""
    _continue(name, folder)


def test_a_run_on_sentences_with_labels_continues_as_before(folder: Path) -> None:
    """Labels that are all different change no loss, and their meaning is not asked about again."""
    file = folder / "pairs.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    labelled = [
        {"sentence1": row["anchor"], "sentence2": row["positive"], "label": number}
        for number, row in enumerate(rows)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in labelled))
    _continue("contrastive", folder)


def _continue(name: str, folder: Path) -> None:
    """Continue a run and compare its steps with those of the earlier version."""
    run = RunDirectory(folder / name)
    before = read_records(run)
    played = play(run, resume="last", name=name)
    assert played.records[: len(before)] == before or name == "sft"  # NaN is not equal to itself
    new = played.records[len(before) :]
    steps = [record for record in new if isinstance(record.event, StepFinished)]
    expected = FACTS["runs"][name]["continued"]
    assert [(r.step, r.timeline) for r in steps] == [(e["step"], e["timeline"]) for e in expected]
    exact = machine() == FACTS["machine"]
    for record, one in zip(steps, expected, strict=True):
        event = record.event
        assert isinstance(event, StepFinished)
        for field in ("loss", "grad_norm", "lr", "lr_scale", "clip"):
            wanted = one[field]
            wanted = float.fromhex(wanted) if isinstance(wanted, str) else wanted
            close = wanted if exact else pytest.approx(wanted, rel=TOLERANCE)
            assert getattr(event, field) == close, (record.step, field)
    notices = [r.event.text for r in new if isinstance(r.event, LogEmitted)]
    assert len([text for text in notices if "written by an earlier version of fttui" in text]) == 1
    identity = CheckpointStore(run).all()[-1].identity
    assert identity is not None
    assert identity.base.hash
    assert identity.data.hash
    started = next(r.event for r in reversed(new) if isinstance(r.event, RunStarted))
    assert started.incarnation == max(_incarnations(before)) + 1


def _incarnations(records: list[Any]) -> list[int]:
    return [r.event.incarnation for r in records if isinstance(r.event, RunStarted)]


def test_settings_are_carried_on(folder: Path) -> None:
    """The learning rate scale of the recovery and the percentile clip are in force again."""
    played = play(RunDirectory(folder / "sft"), resume="last")
    steps = [event for step, event in played.at(StepFinished) if step > 12]
    assert {event.lr_scale for event in steps} == {0.25}
    assert len({event.clip for event in steps}) > 1, "a percentile of recent norms"
