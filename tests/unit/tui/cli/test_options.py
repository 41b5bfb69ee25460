"""Errors of the command line say what was given, what is expected, and where the help is."""

from __future__ import annotations

import os
import sys

import pytest

from fttui.engine.errors import FttuiError
from fttui.tui.cli import attach
from fttui.tui.cli.main import main
from fttui.tui.cli.options import warn, wrapped


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (
            "check a.yaml --devices x",
            "--devices: got 'x', expected a whole number; see: fttui check",
        ),
        ("mine a.jsonl --model m -o b --margin x", "--margin: got 'x', expected a number"),
        ("show", "RUN is missing; use: fttui show"),
        ("show", "list the runs with: fttui ls"),
        ("diff a", "RUN_B is missing; use: fttui diff"),
        ("completion foo", "shell: got 'foo', expected one of"),
        ("race --steps", "--steps: got no value, expected one"),
        ("raec", "got 'raec', which is no command; did you mean race?"),
        ("compare a b", "got 'compare', which is no command; did you mean diff?"),
        ("data a b", "got b, which this command does not take; use: fttui data [-h]"),
        (
            "ls --runs-dri d",
            "got --runs-dri, which this command does not take; did you mean --runs-",
        ),
    ],
)
def test_an_error_of_the_command_line(
    words: str, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    printed = capsys.readouterr().err
    assert ended.value.code == 2
    assert printed.startswith("fttui: ")
    assert error in printed
    assert printed.rstrip().endswith("--help")


@pytest.mark.parametrize("width", [20, 40, 80])
def test_a_wrapped_sentence_breaks_no_word_and_no_value_from_its_unit(width: int) -> None:
    text = "base weights 52.5 MiB; embeddings, head, norms 108.1 MiB; context 1.0 GiB, 12 % free"
    rows = wrapped(text, width)
    assert " ".join(rows) == text
    assert all(len(row) <= width for row in rows)
    assert not any(row.startswith(("MiB", "GiB", "%")) for row in rows)


def test_a_package_that_an_installed_one_lacks_is_named_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(_: object) -> int:
        raise ModuleNotFoundError("No module named 'colorlog'", name="colorlog")

    monkeypatch.setattr(attach, "_show", fails)
    assert main(["show", "x"]) == FttuiError.exit_code
    assert "-m pip install colorlog" in capsys.readouterr().err


@pytest.mark.parametrize("terminal", [True, False])
def test_errors_break_no_word_on_a_terminal_and_keep_commands_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], terminal: bool
) -> None:
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((40, 24)))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    sentence = "  1 of 4 records (25 %) left out: the row has a value that cannot be read"
    command = "resume from the last checkpoint with: fttui run --resume demo-20261201"
    warn(f"fttui: two lines\n{sentence}\n{command}")
    printed = capsys.readouterr().err.splitlines()
    assert printed[0] == "fttui: two lines"
    assert printed[-1] == command
    rows = printed[1:-1]
    assert " ".join(row.strip() for row in rows) == sentence.strip()
    assert all(row.startswith("  ") for row in rows)
    assert all(len(row) <= 40 for row in rows) is terminal
