"""What leaves the app: the last command as a command line, and pictures of the screen."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from fttui.engine.protocol.commands import (
    AddNote,
    AnyCommand,
    GenerateSample,
    Quarantine,
    Rollback,
    SaveCheckpoint,
    ScaleLr,
    SetMix,
    Stop,
    describe_command,
    parse_command,
)
from fttui.tui.screens.handlers import sharing

SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><path d="M0 0h9v9z"/></svg>'


def test_without_a_converter_the_svg_stays_and_what_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cairosvg", None)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    said = sharing.with_png(tmp_path / "a.svg")
    assert said.startswith(f"saved {tmp_path}/a.svg; for a PNG as well, install cairosvg")


def test_a_converter_that_fails_is_reported_beside_the_svg(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise subprocess.CalledProcessError(1, "rsvg-convert")

    monkeypatch.setitem(__import__("sys").modules, "cairosvg", None)
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(subprocess, "run", broken)
    assert "no PNG: Command 'rsvg-convert'" in sharing.with_png(tmp_path / "a.svg")


def test_an_installed_program_makes_the_png(tmp_path: Path) -> None:
    if not any(shutil.which(name) for name, _ in sharing.CONVERTERS):
        pytest.skip("no converter here")
    svg = tmp_path / "a.svg"
    svg.write_text(SVG)
    assert sharing.with_png(svg) == f"saved {svg} and a.png"
    assert svg.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "command",
    [
        ScaleLr(factor=0.5),
        Rollback(checkpoint="step-5", lr_scale=0.5, skip=3),
        AddNote(text="half of $(rm -rf ~) `x` 'y'"),
        GenerateSample(prompt="a; b && c"),
        SaveCheckpoint(note="before $HOME"),
        SaveCheckpoint(pin=True, note="best | one"),
        SaveCheckpoint(pin=True),
        Quarantine(ids=("a b", "$(c)")),
        Quarantine(ids=("x",), lift=True),
        SetMix(weights={"a b": 2, "$(c)": 0.5}),
        SetMix(weights={}),
        Stop(save=False),
    ],
)
def test_a_shell_reads_the_copied_command_as_the_one_that_was_sent(command: AnyCommand) -> None:
    line = " ".join(sharing.words_of(describe_command(command)))
    done = subprocess.run(
        ["sh", "-c", f'printf "%s\\\\0" {line}'], capture_output=True, text=True, check=True
    )
    assert parse_command(done.stdout.split("\0")[:-1]) == command
