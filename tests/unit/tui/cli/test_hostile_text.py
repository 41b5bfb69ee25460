"""No text from outside reaches the terminal as it is, whatever command prints it."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from fttui.engine.errors import FttuiError
from fttui.engine.protocol.data.sample import SampleRecord, SampleSpan, SampleText
from fttui.engine.protocol.events import Record
from fttui.engine.run.run_dir import RunDirectory
from fttui.tui.cli import attach, main
from fttui.tui.cli.data_check.text import print_record
from fttui.tui.cli.headless import HeadlessLog
from fttui.tui.cli.options import say, say_json
from fttui.tui.cli.output import escaped_output, styled
from fttui.tui.text.control_characters import one_line
from tests.support.engine_double import make_run
from tests.support.hostile import (
    EVIL,
    faults_of,
    hostile_events,
    poison_files,
    poisoned,
    write_hostile_journal,
)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    made = make_run(tmp_path / "runs")
    evil = made.path.with_name(EVIL.replace("\x00", "").replace("/", ""))
    made.path.rename(evil)
    made = RunDirectory(evil)
    poison_files(made)
    write_hostile_journal(made)
    monkeypatch.setenv("FTTUI_RUNS", str(evil.parent))
    return made


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    found = capsys.readouterr()
    text = found.out + found.err
    assert text
    assert faults_of(text) == []
    return text


COMMANDS: dict[str, list[str]] = {
    "ls": ["ls"],
    "ls --json": ["ls", "--json"],
    "events": ["events", "RUN"],
    "report": ["report", "RUN"],
    "a report that does not exist": ["report", "RUN", EVIL],
    "ctl": ["ctl", "RUN", "pause"],
    "ctl without a command": ["ctl", "RUN"],
    "ctl with hostile words": ["ctl", "RUN", "note", EVIL],
    "a run that does not exist": ["show", EVIL],
    "export": ["export", "RUN", "--adapter"],
    "export of a checkpoint that does not exist": ["export", f"RUN@{EVIL}", "--adapter"],
    "resume": ["run", "--resume", "RUN", "--headless"],
    "check": ["check", EVIL],
    "check of a key": ["check", "CONFIG", "--set", f"{EVIL}=1"],
    "check of a value": ["check", "CONFIG", "--set", f"task={EVIL}"],
    "a folder of runs": ["ls", "--runs-dir", f"/nowhere/{EVIL}"],
}


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_no_command_prints_hostile_text(
    run: RunDirectory, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    config = run.path.parent.parent / "evil.yaml"
    config.write_text(f"name: x\n{json.dumps(EVIL)}: 1\ntask: {json.dumps(EVIL)}\n")
    places = {"RUN": str(run.path), "CONFIG": str(config)}
    for name, place in places.items():
        words = [word.replace(name, place) for word in words]
    with suppress(SystemExit):
        main.main([word.replace("\x00", "") for word in words])
    printed(capsys)


def test_a_mistyped_option_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main.main(["ls", f"--{EVIL}".replace(" ", "")])
    assert "\\x1b]52" in printed(capsys)


def test_no_row_of_a_list_is_split(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["ls"]) == 0
    assert len(printed(capsys).strip().splitlines()) == 2


def test_headless_lines_are_each_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    log = HeadlessLog()
    count = 0
    with escaped_output():
        for seq, event in enumerate(hostile_events(), start=1):
            record = Record(seq=seq, time=1e9, step=seq, timeline=1, event=event)
            for line in log.lines(record, float(seq * 10)):
                count += 1
                say(one_line(line))
    assert len(printed(capsys).splitlines()) == count > 20


def test_records_are_shown_with_colours_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = poisoned(
        SampleRecord(
            place="a:1", id="b", notes=["n"],
            texts=[SampleText(name="t", tokens=3, learned=1, spans=[SampleSpan("x", True)])],
        )
    )  # fmt: skip
    with escaped_output():
        print_record(record)
    printed(capsys)
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    with escaped_output():
        print_record(record)
    assert "\x1b[" in terminal.getvalue()
    assert faults_of(terminal.getvalue(), painted=True) == []


@pytest.mark.parametrize("error", [FttuiError(EVIL), OSError(2, EVIL, EVIL), OSError(EVIL)])
def test_errors_are_printable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    def fail(_: object) -> int:
        raise error

    monkeypatch.setattr(attach, "_show", fail)
    assert main.main(["show", "x"]) == 1
    printed(capsys)


def test_a_traceback_is_printable(capsys: pytest.CaptureFixture[str]) -> None:
    with escaped_output():
        try:
            raise ValueError(EVIL)
        except ValueError:
            sys.excepthook(*sys.exc_info())
    printed(capsys)


WRITES: dict[str, Callable[[], object]] = {
    "print": lambda: print(EVIL),
    "write": lambda: sys.stdout.write(EVIL),
    "writelines": lambda: sys.stderr.writelines([EVIL, EVIL]),
    "json": lambda: say_json({"a": EVIL, "b": 1}),
    "half a character": lambda: print("\ud83d\udc80"),
}


@pytest.mark.parametrize("way", WRITES)
def test_every_way_to_print_is_covered(capsys: pytest.CaptureFixture[str], way: str) -> None:
    with escaped_output():
        WRITES[way]()
    printed(capsys)


def test_the_streams_are_put_back() -> None:
    before = sys.stdout, sys.stderr
    with escaped_output():
        assert styled(sys.stdout) is before[0]
        assert sys.stderr is not before[1]
    assert (sys.stdout, sys.stderr) == before
    assert styled(before[0]) is before[0]
