"""The completion scripts and the manual page know every subcommand and option."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from fttui.engine.errors import FttuiError
from fttui.tui.cli.main import build_parser, main
from fttui.tui.cli.shell.completion import SHELLS
from fttui.tui.cli.shell.man_page import man_page

_COMPLETE = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
compopt() { :; }
_shtab_fttui fttui "${@: -1}" "${@: -2:1}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


def subcommands() -> dict[str, argparse.ArgumentParser]:
    (found,) = (a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction))
    return dict(found.choices)


@pytest.fixture
def script(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Path:
    pytest.importorskip("shtab")
    assert main(["completion", "bash"]) == 0
    file = tmp_path / "fttui.bash"
    file.write_text(capsys.readouterr().out)
    return file


def offered(script: Path, *words: str) -> set[str]:
    """What bash offers for the last of these words."""
    call = ["bash", "-c", _COMPLETE, "bash", str(script), "fttui", *words]
    done = subprocess.run(call, capture_output=True, text=True, cwd=script.parent, check=True)
    assert done.stderr == ""
    return set(done.stdout.split("\n")) - {""}


def make_run(folder: Path, name: str) -> None:
    (folder / "runs" / name).mkdir(parents=True)
    (folder / "runs" / name / "run.json").write_text("{}")


def test_bash_completes_subcommands_and_options(script: Path) -> None:
    assert offered(script, "") >= set(subcommands())
    assert offered(script, "ex") == {"exec", "export"}
    assert offered(script, "check", "--s") == {"--set", "--schema", "--show"}
    assert offered(script, "sync", "--to", "t") == {"tensorboard", "trackio"}


def test_bash_completes_runs_verbs_and_files(script: Path) -> None:
    make_run(script.parent, "demo-1")
    make_run(script.parent, "other")
    (script.parent / "runs" / "no-run").mkdir()
    (script.parent / "my.yaml").touch()
    assert offered(script, "show", "") == {"demo-1", "other"}
    assert offered(script, "export", "de") == {"demo-1"}
    assert offered(script, "ctl", "ro") == {"rollback"}
    assert offered(script, "ctl", "o") == {"other"}
    assert offered(script, "run", "my") == {"my.yaml"}
    assert offered(script, "run", "--runs-dir", "r") == {"runs"}


def test_the_name_of_a_foreign_run_is_no_command_for_bash(script: Path) -> None:
    for name in ("$(touch made)", "a b", "`touch made`", "x;touch made"):
        make_run(script.parent, name)
    assert offered(script, "show", "") == set()
    assert not (script.parent / "made").exists()


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_gets_a_script_with_every_subcommand(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("shtab")
    assert main(["completion", shell]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in subcommands())
    assert r"\x1b" not in said


def test_without_its_package_completion_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == FttuiError.exit_code
    assert "pip install shtab" in capsys.readouterr().err


def test_the_manual_page_has_every_argument() -> None:
    assert man_page().isascii()
    page = man_page().replace(r"\-", "-").replace(r"\[u00D7]", "×")
    for name, parser in subcommands().items():
        part = page.split(f'.SS "fttui {name}"')[1].split(".SS")[0]
        for action in parser._actions:
            if action.help == argparse.SUPPRESS:  # a deprecated name
                continue
            assert all(option in part for option in action.option_strings)
            assert (action.help or "").split("%")[0] in " ".join(part.split())
