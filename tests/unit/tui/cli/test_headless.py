from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fttui.engine.errors import ConfigError, NoSuchRun
from fttui.engine.protocol.commands import AddNote, Pause, RunSteps
from fttui.engine.protocol.culprit_text import culprit_headline
from fttui.engine.protocol.event_parts import CulpritSearch, DataFinding
from fttui.engine.protocol.events import (
    AnomalyRaised,
    AnyEvent,
    CheckpointSaved,
    CommandApplied,
    CulpritsFound,
    DataFindingsChanged,
    LogEmitted,
    ProgressMade,
    Record,
    RunEnded,
    RunStarted,
    StateChanged,
    StepFinished,
)
from fttui.engine.protocol.states import RunState
from fttui.tui.cli.cluster.place import Cluster
from fttui.tui.cli.control import _addressed
from fttui.tui.cli.headless import HeadlessLog
from fttui.tui.cli.ls import finite
from fttui.tui.cli.main import build_parser, main
from fttui.tui.cli.options import name_and_step
from fttui.tui.cli.run import _overrides
from tests.support.engine_double import EngineDouble, make_run

STARTED = RunStarted(
    name="demo",
    incarnation=1,
    pid=1,
    host="h",
    world_size=1,
    task="sft",
    model="tiny",
    total_steps=10,
    micro_batch_size=1,
    accumulation=1,
    devices=["cpu"],
    facts={"rows dropped": "3"},
)


def said(lines: HeadlessLog, event: AnyEvent, *, step: int = 0, now: float = 0.0) -> list[str]:
    record = Record(seq=1, time=0.0, step=step, timeline=1, event=event)
    return list(lines.lines(record, now))


SPREAD = CulpritSearch(verdict="spread")
STEP = StepFinished(loss=2.5, grad_norm=0.75, lr=1e-4, step_s=2.0, tokens_per_s=812.0)


def step(**changes: Any) -> StepFinished:
    return msgspec.structs.replace(STEP, **changes)


def test_a_step_line_has_what_a_person_follows() -> None:
    lines = HeadlessLog()
    assert said(lines, STARTED) == ["run demo: sft on tiny, 10 steps, cpu", "rows dropped: 3"]
    (line,) = said(lines, step(rss_bytes=2 * 2**30), step=4)
    assert line == (
        "step 4/10  loss 2.500  grad 0.750  lr 1.00e-4  2.00 s/step  812 tok/s  mem 2.0 GiB  "
        "ETA 12 s"
    )


def test_steps_come_once_a_second_but_the_last_and_the_skipped_always() -> None:
    lines = HeadlessLog()
    said(lines, STARTED)
    assert said(lines, step(), step=1, now=0.0)
    assert not said(lines, step(), step=2, now=0.9)
    assert (
        "update skipped" in said(lines, step(loss=float("nan"), skipped=True), step=3, now=0.95)[0]
    )
    assert not said(lines, step(), step=4, now=1.9)
    assert said(lines, step(), step=5, now=2.0)
    assert said(lines, step(), step=10, now=2.1)


def test_a_nan_is_shown_as_one() -> None:
    (line,) = said(HeadlessLog(), step(loss=float("nan"), grad_norm=float("inf")), step=1)
    assert "loss NaN  grad ∞" in line


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (StateChanged(state=RunState.PAUSED, detail="asked"), "state paused before step 6: asked"),
        (
            CheckpointSaved(name="s5", size_bytes=2**20, seconds=1.26),
            "checkpoint s5 (1.0 MiB, 1.3 s)",
        ),
        (
            CommandApplied(id="a", command="clip 0.5", old="1", new="0.5", issuer="ann"),
            "applied from step 6: clip 0.5 (1 → 0.5) by ann",
        ),
        (
            AnomalyRaised(id="a", kind="spike", severity="alarm", headline="×6", report="r1"),
            "alarm at step 5: ×6 (report r1)",
        ),
        (LogEmitted(level="warning", text="careful"), "warning: careful"),
        (
            (spread := CulpritsFound(anomaly="a", anomaly_step=3, search=SPREAD)),
            f"culprits of a: {culprit_headline(spread)} (report a)",
        ),
        (
            RunEnded(state=RunState.FAILED, exit_code=8, error="no room"),
            "failed at step 5: no room",
        ),
    ],
)
def test_everything_else_has_its_line_at_once(event: AnyEvent, line: str) -> None:
    assert said(HeadlessLog(), event, step=5) == [line]


def test_a_start_has_one_line_although_it_is_told_twice() -> None:
    lines = HeadlessLog()
    assert said(lines, msgspec.structs.replace(STARTED, devices=[], facts={})) == []
    assert said(lines, STARTED) == ["run demo: sft on tiny, 10 steps, cpu", "rows dropped: 3"]


def test_saving_is_no_state_of_its_own() -> None:
    lines = HeadlessLog()
    states = (RunState.RUNNING, RunState.SAVING, RunState.RUNNING, RunState.PAUSED)
    told = [line for state in states for line in said(lines, StateChanged(state=state))]
    assert told == ["state running", "state paused before step 1"]


def test_an_error_that_ends_the_run_is_said_once() -> None:
    lines = HeadlessLog()
    assert said(lines, LogEmitted(level="error", text="no rows")) == ["error: no rows"]
    ended = RunEnded(state=RunState.FAILED, exit_code=9, error="no rows")
    assert said(lines, ended) == ["failed at step 0"]
    other = RunEnded(state=RunState.FAILED, exit_code=9, error="no room")
    assert said(lines, other) == ["failed at step 0: no room"]


@pytest.mark.parametrize(
    "words",
    [
        "demo --take lr scale 2",
        "--take demo lr scale 2",
        "demo lr --take scale 2",
        "demo lr scale 2 --take",
    ],
)
def test_options_may_stand_anywhere_in_a_command(words: str) -> None:
    options = build_parser().parse_args(["ctl", *words.split()])
    assert options.take
    assert options.words == ["demo", "lr", "scale", "2"]


def test_a_run_without_a_command_lists_the_commands(tmp_path: Path) -> None:
    EngineDouble(make_run(tmp_path, name="demo")).start()
    with pytest.raises(ConfigError, match=r"no command given for demo.*\n  lr scale FACTOR"):
        _addressed(["demo"], tmp_path)


def test_a_list_of_runs_keeps_to_the_width_of_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = EngineDouble(make_run(tmp_path, name="demo"))
    engine.start()
    engine.emit(RunEnded(state=RunState.FAILED, exit_code=9, error="no " * 99))
    main(["ls", "--runs-dir", str(tmp_path)])
    assert len(capsys.readouterr().out.splitlines()[1]) > 300
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "90")
    main(["ls", "--runs-dir", str(tmp_path)])
    line = capsys.readouterr().out.splitlines()[1]
    assert len(line) == 90
    assert line.endswith("…")


def test_chatter_is_left_out_and_progress_thinned() -> None:
    lines = HeadlessLog()
    assert said(lines, LogEmitted(level="info", text="x")) == []
    assert said(lines, ProgressMade(label="loading", done=1, total=4), now=0) == ["loading 25 %"]
    assert said(lines, ProgressMade(label="loading", done=2, total=4), now=0.5) == []
    assert said(lines, ProgressMade(label="loading", done=4, total=4), now=0.6) == ["loading 100 %"]


def test_json_has_no_nan() -> None:
    value = {"a": [float("nan"), 1.5, {"b": float("-inf")}], "c": float("inf"), "d": "x"}
    assert finite(value) == {"a": ["NaN", 1.5, {"b": "-Infinity"}], "c": "Infinity", "d": "x"}


@pytest.mark.parametrize(
    ("text", "name", "step"),
    [("demo", "demo", None), ("demo@40", "demo", "40"), ("/a@b/demo", "/a@b/demo", None)],
)
def test_the_run_to_resume(text: str, name: str, step: str | None) -> None:
    assert name_and_step(text) == (name, step)


def test_short_options_become_overrides() -> None:
    options = build_parser().parse_args(
        ["run", "c.yaml", "--set", "train.lr=1e-3", "--name", "n", "--max-steps", "7"]
    )
    assert _overrides(options, Cluster()) == [
        "train.lr=1e-3",
        "name=n",
        "train.steps=7",
    ]


def test_the_first_word_is_the_run_unless_only_the_whole_is_a_command(tmp_path: Path) -> None:
    engine = EngineDouble(make_run(tmp_path, name="run"))
    engine.start()
    run = engine.run
    assert _addressed(["run-", "pause"], tmp_path) == (run, Pause())
    assert _addressed(["pause"], tmp_path) == (run, Pause())
    assert _addressed(["run", "5"], tmp_path) == (run, RunSteps(steps=5))
    assert _addressed(["note", "pause"], tmp_path) == (run, AddNote(text="pause"))
    with pytest.raises(ConfigError, match="unknown command 'fly'"):
        _addressed([run.id, "fly"], tmp_path)
    with pytest.raises(ConfigError, match="unknown command 'pauze'"):
        _addressed(["pauze"], tmp_path)
    with pytest.raises(NoSuchRun):
        _addressed(["other", "pause"], tmp_path)


def test_a_negative_number_is_no_option() -> None:
    options = build_parser().parse_args(["ctl", "demo", "--take", "lr", "scale", "-3"])
    assert options.words == ["demo", "lr", "scale", "-3"]


CUT = DataFinding(
    reason="cut", text="truncated", unit="records", count=3, total=2000, place="d.jsonl:7"
)
GUESSED = DataFinding(
    reason="guessed", text="ignored", unit="columns", count=1, total=4, place="d.jsonl", detail="id"
)


def test_findings_are_printed_with_their_first_place() -> None:
    started = msgspec.structs.replace(STARTED, findings=[CUT, GUESSED])
    assert said(HeadlessLog(), started)[-2:] == [
        "data: 3 of 2,000 records (0.15 %) truncated; first: d.jsonl:7",
        "data: 1 of 4 columns (25 %) ignored; first: d.jsonl, id",
    ]


def test_findings_of_a_stream_are_printed_when_they_change() -> None:
    changed = DataFindingsChanged(findings=[msgspec.structs.replace(CUT, place="")])
    assert said(HeadlessLog(), changed) == ["data: 3 of 2,000 records (0.15 %) truncated"]
