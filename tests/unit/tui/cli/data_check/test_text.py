from __future__ import annotations

import io
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from fttui.engine.errors import ConfigError, DataError
from fttui.engine.protocol.data.messages import AnyDataMessage, DataLine, ReadingProgress
from fttui.engine.protocol.data.sample import SampleRecord, SampleSpan, SampleText, SampleToken
from fttui.tui.cli.data_check.process import ProgressLine, data_messages, print_lines
from fttui.tui.cli.data_check.text import print_record, record_text
from tests.unit.tui.text.test_control_characters import HOSTILE, unsafe

SPANS = [SampleSpan("Hi [b]", False), SampleSpan("there", True)]
TOKENS = [SampleToken(5, "Hi", -100), SampleToken(6, "Ġthere", 6)]
TEXT = SampleText(name="text", spans=SPANS, tokens=3, learned=1, left_out=7, token_list=TOKENS)
RECORD = SampleRecord(id="d:1", place="d.jsonl:1", texts=[TEXT], notes=["truncated"])


def test_without_colours_targets_stand_between_marks(capsys: pytest.CaptureFixture[str]) -> None:
    print_record(RECORD)
    assert capsys.readouterr().out.splitlines() == [
        "── d.jsonl:1",
        "   truncated",
        "[text] 1 of 3 tokens are targets",
        "Hi [b]«there» … 7 more characters",
        "position       id    label  token",
        "       0        5        –  Hi",
        "       1        6        6  Ġthere",
    ]


def test_with_colours_targets_have_a_style_and_no_marks() -> None:
    shown = next(one for one in record_text(RECORD, marks=False) if "there" in one.plain)
    assert "«" not in shown.plain
    [target] = [span for span in shown.spans if span.style == "bold green"]
    assert shown.plain[target.start : target.end] == "there"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_has_colours_unless_no_color_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, coloured in (("", True), ("1", False)):
        monkeypatch.setenv("NO_COLOR", name)
        monkeypatch.setenv("TERM", "xterm-256color")
        terminal = Terminal()
        monkeypatch.setattr(sys, "stdout", terminal)
        print_record(RECORD)
        assert ("\x1b[" in terminal.getvalue()) is coloured
        assert ("«there»" in terminal.getvalue()) is not coloured


def test_a_record_that_is_dropped_is_shown_as_such() -> None:
    dropped = SampleRecord(id="d:2", place="d:2", texts=[], notes=["dropped"])
    shown = [one.plain for one in record_text(dropped, marks=True)]
    assert shown == ["── d:2", "   dropped", "   this record is not learned"]


def test_hostile_text_in_a_record_is_shown_as_escapes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spans = [SampleSpan(HOSTILE, False), SampleSpan(HOSTILE, True)]
    text = SampleText(
        name="text", spans=spans, tokens=2, learned=1, token_list=[SampleToken(5, HOSTILE, -100)]
    )
    record = SampleRecord(id=HOSTILE, place=HOSTILE, texts=[text], notes=[HOSTILE])
    print_record(record)
    assert not unsafe(capsys.readouterr().out)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    print_record(record)
    shown = terminal.getvalue()
    assert not unsafe(re.sub(r"\x1b\[[\d;]*m", "", shown))
    assert shown.count(r"\x1b]52;") == 5
    ProgressLine(terminal).show(ReadingProgress(label=HOSTILE, done=1, total=2))
    assert "\x1b]" not in terminal.getvalue()


@pytest.mark.parametrize(
    ("place", "identity", "shown"),
    [
        ("a/d.jsonl:7", "d:6", "── a/d.jsonl:7"),
        ("chats/train.jsonl:7", "chats:9", "── chats/train.jsonl:7"),
        ("a/d.jsonl:7", "a/d.jsonl:7", "── a/d.jsonl:7"),
        ("a/d.jsonl:7", "ticket 12", "── a/d.jsonl:7 (ticket 12)"),
    ],
)
def test_only_an_id_of_the_data_is_shown(place: str, identity: str, shown: str) -> None:
    record = SampleRecord(id=identity, place=place, texts=[])
    assert next(record_text(record, marks=True)).plain == shown


def test_progress_is_shown_on_a_terminal_only() -> None:
    progress = ReadingProgress(label="tokenizing", done=1, total=4)
    terminal, file = Terminal(), io.StringIO()
    for stream in (terminal, file):
        line = ProgressLine(stream)
        line.show(progress)
        line.clear()
        line.clear()
    assert terminal.getvalue() == "\r\x1b[Ktokenizing 25%\r\x1b[K"
    assert file.getvalue() == ""


def test_lines_are_printed_and_other_messages_are_passed_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def messages() -> Iterator[AnyDataMessage]:
        yield ReadingProgress(label="reading", done=0, total=1)
        yield DataLine(text="3 records")

    said: list[str] = []
    assert list(print_lines(messages(), said.append)) == []
    assert said == ["3 records"]
    assert capsys.readouterr().out == ""


def test_the_check_says_what_it_does_before_its_first_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    seen: list[str] = []

    def messages() -> Iterator[AnyDataMessage]:
        seen.append(terminal.getvalue())
        yield DataLine(text="3 records")

    assert list(print_lines(messages(), seen.append)) == []
    assert seen == ["\r\x1b[Kchecking the data …", "3 records"]


def process(code: str, monkeypatch: pytest.MonkeyPatch) -> list[AnyDataMessage]:
    """Messages of a process that runs the code instead of a module."""
    real = subprocess.Popen

    def started(command: list[str], **options: Any) -> object:
        return real([sys.executable, "-c", code], **options)

    monkeypatch.setattr(subprocess, "Popen", started)
    return list(data_messages("validate", [], "given"))


def test_the_process_is_given_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import sys, json; print(json.dumps({'k': 'line', 'text': sys.stdin.read()}))"
    assert process(code, monkeypatch) == [DataLine(text="given")]


REFUSED = (
    "import json; "
    "print(json.dumps({'k': 'refused', 'text': 'd:3: no', 'exit_code': 9}));"
    "raise SystemExit(9)"
)


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (REFUSED, r"^d:3: no$"),
        ("raise ValueError('of a library')", r"exit code 1; its last output:\n.*ValueError: of a"),
    ],
)
def test_a_process_that_fails_is_reported(
    code: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match="(?s)" + told):
        process(code, monkeypatch)


def test_an_error_of_the_configuration_keeps_its_class(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = {"k": "refused", "text": "data.template: none", "exit_code": 2}
    with pytest.raises(ConfigError, match="none"):
        process(f"import json; print(json.dumps({refused}))", monkeypatch)


@pytest.mark.parametrize(("plain", "term"), [(True, "xterm"), (False, "dumb")])
def test_plain_progress_is_a_line_per_quarter(
    plain: bool, term: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", term)
    terminal = Terminal()
    line = ProgressLine(terminal, plain=plain)
    for done in range(101):
        line.show(ReadingProgress(label="tokenizing", done=done, total=100))
    line.clear()
    assert terminal.getvalue().splitlines() == [
        f"tokenizing {share}%" for share in (0, 25, 50, 75, 100)
    ]
    assert "\r" not in terminal.getvalue()
