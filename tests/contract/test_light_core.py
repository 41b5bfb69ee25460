"""Without the extra `train` the app, the commands and the library work, and the others say so."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import get_args

import pytest

from fttui.engine.config.schema import Tracker
from fttui.engine.config.sections.outward import TRACKER_PACKAGES
from fttui.engine.errors import FttuiError
from fttui.tui.cli.main import MODULES, build_parser
from fttui.tui.cli.preflight import extras
from fttui.tui.cli.preflight.training_packages import TRAIN, fits
from tests.support.counting_run import new_counting_run
from tests.support.matrix import in_part
from tests.support.wheel import built_wheel, copied_source, light_environment
from tests.support.without_packages import python_without

from .links import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BROUGHT_ALONG = {
    "huggingface_hub", "tokenizers", "pyarrow", "pandas", "gguf", "apprise", "wandb", "mlflow",
    "tensorboardX", "trackio", "swanlab", "prometheus_client", "mcp", "textual_serve", "aiohttp",
    "IPython", "optuna", "lm_eval",
}  # fmt: skip
"""Packages that only come with the extras."""
HEAVY = {*TRAIN, *BROUGHT_ALONG}
SCRIPTS = {"trl", "peft", "bitsandbytes", "datasets"}
"""Packages that a script with a stock `Trainer` may lack."""
REFUSED = {
    "run": "run CONFIG",
    "check": "check CONFIG",
    "data": "data FILE",
    "mine": "mine FILE --model DIR -o OUT",
    "init": "init DATA",
    "lr-find": "lr-find CONFIG",
    "sweep": "sweep CONFIG train.lr=1e-4,2e-4",
    "profile": "profile CONFIG",
    "export": "export --adapter",
    "bench": "bench --tasks a",
}
"""Commands that need the extra, with a call of each."""
LIGHT = {
    "exec", "attach", "show", "ls", "ctl", "events", "report", "doctor", "bridge", "import", "sync",
    "prometheus", "race", "recipe",
    "diff", "completion", "launch", "mcp", "web",
}  # fmt: skip

_IMPORT_ALL = """
import importlib, pkgutil
for name in ("fttui", "fttui.tui", "fttui.engine.protocol", "fttui.engine.run", "fttui.engine.hub",
             "fttui.engine.config", "fttui.engine.core", "fttui.engine.telemetry",
             "fttui.engine.followers"):
    package = importlib.import_module(name)
    inner = pkgutil.walk_packages(package.__path__, name + ".") if name != "fttui" else ()
    for found in inner:
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
import fttui.tui.app, fttui.tui.cli.attach, fttui.engine.watch.startup
print("imported")
"""


def test_everything_but_training_is_imported_without_its_packages() -> None:
    done = python_without(HEAVY, _IMPORT_ALL)
    assert done.stdout == "imported\n", done.stderr


def subcommands() -> Iterator[str]:
    parser = build_parser()
    for action in parser._actions:
        if action.choices:
            yield from action.choices


def test_every_subcommand_is_one_that_needs_the_extra_or_not() -> None:
    assert set(subcommands()) == set(REFUSED) | LIGHT


@pytest.mark.parametrize(
    "command", in_part(REFUSED.values(), [REFUSED["run"], REFUSED["data"]]), ids=REFUSED
)
def test_a_command_that_trains_names_the_extra(command: str, tmp_path: Path) -> None:
    config = tmp_path / "my.yaml"
    config.write_text("name: x\n")
    words = command.replace("CONFIG", str(config)).replace("FILE", str(config)).split()
    if words[0] == "run":
        words.append("--headless")
    code = f"import sys; from fttui.tui.cli.main import main; sys.exit(main({words!r}))"
    done = python_without(HEAVY, code)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "datasets are not installed" in done.stderr
    assert f"fttui {words[0]} needs" in done.stderr
    assert "pip install 'fttui[train]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_one_missing_package_is_named() -> None:
    code = "from fttui.tui.cli.main import main; main(['data', 'x.jsonl'])"
    assert "but trl is not installed. Run:" in python_without(["trl"], code).stderr


def test_benchmarks_without_their_harness_name_the_extra() -> None:
    code = (
        "import sys; from fttui.tui.cli.main import main; sys.exit(main(['bench', '--tasks', 'a']))"
    )
    done = python_without(["lm_eval"], code)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "fttui bench needs the package lm_eval" in done.stderr
    assert "pip install 'fttui[bench]'" in done.stderr


@pytest.mark.parametrize("tracker", TRACKER_PACKAGES)
def test_a_tracker_without_its_package_names_the_extra(
    tracker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "installed", lambda _name: None)
    with pytest.raises(FttuiError, match=rf"pip install 'fttui\[{tracker}\]'"):
        extras.require_trackers([tracker])
    declared = " ".join(PROJECT["optional-dependencies"][tracker])
    assert any(declared.startswith(package) for package in TRACKER_PACKAGES[tracker])


def test_the_trackers_are_those_of_the_configuration() -> None:
    assert set(TRACKER_PACKAGES) == set(get_args(Tracker))


def test_doctor_says_what_works() -> None:
    code = "from fttui.tui.cli.main import main; main(['doctor'])"
    said = python_without(HEAVY, code).stdout
    assert "note  training       not installed" in said
    assert "this machine can follow and control runs and watch scripts" in said


@pytest.mark.parametrize(
    ("call", "result"),
    [
        ("o = object(); print(fttui.watch(o) is o)", "True"),
        (
            "class O:\n    def register_step_post_hook(self, hook): pass\n"
            "run = fttui.watch(model=1, optimizer=O()); print(list(run.batches([1, 2])))",
            "[1, 2]",
        ),
    ],
    ids=["a trainer", "a loop"],
)
def test_watching_without_torch_leaves_the_script_alone(call: str, result: str) -> None:
    done = python_without(HEAVY, f"import fttui\n{call}")
    assert done.stdout.strip() == result, done.stderr
    assert "fttui: this training is not watched: No module named 'torch'" in done.stderr


def test_a_script_with_a_trainer_needs_only_what_it_uses_itself_and_owns_no_socket() -> None:
    code = "import sys, fttui.engine.watch.huggingface.watch; print('zmq' in sys.modules)"
    done = python_without(SCRIPTS, code)
    assert done.stdout == "False\n", done.stderr


def test_the_extra_is_what_the_commands_ask_for() -> None:
    declared = PROJECT["optional-dependencies"]["train"]
    assert declared == [name + limits for name, limits in TRAIN.items()]
    core = " ".join(PROJECT["dependencies"])
    assert not any(name in core for name in TRAIN)


@pytest.mark.parametrize(
    ("version", "limits", "wanted"),
    [
        ("5.24.0", ">=5.24,<6", True),
        ("5.23.9", ">=5.24,<6", False),
        ("6.0.0rc1", ">=5.24,<6", False),
        ("2.13.0+cu130", ">=2.10", True),
        ("2.9", ">=2.10", False),
        ("4", ">=4", True),
        ("5", ">=5.24,<6", False),
    ],
)
def test_versions_are_compared_by_their_numbers(version: str, limits: str, wanted: bool) -> None:
    assert fits(version, limits) is wanted


@pytest.mark.long
@pytest.mark.slow
def test_an_environment_with_the_wheel_alone_follows_runs(tmp_path: Path) -> None:
    run = new_counting_run(tmp_path / "runs")
    wheel = built_wheel(copied_source(tmp_path), tmp_path)
    programs = light_environment(wheel, tmp_path / "environment")
    alone = {**os.environ, "HOME": str(tmp_path), "FTTUI_RUNS": str(run.path.parent)}
    alone.pop("PYTHONPATH", None)

    def said(program: str, *words: str, code: int = 0) -> str:
        done = subprocess.run(
            [programs / program, *words],
            capture_output=True,
            text=True,
            timeout=100,
            env=alone,
            cwd=tmp_path,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    assert "ok    fttui" in said("fttui", "doctor")
    assert run.id in said("fttui", "ls")
    assert said("fttui", "events", run.id) == ""
    said("fttui", "check", "--schema")
    said("python", "-c", "import fttui.tui.app, fttui; fttui.watch")
    said("fttui", "exec", "--headless", "--", str(programs / "python"), "-c", "print(1)")
    assert "are not installed" in said("fttui", "run", "--headless", "x.yaml", code=1)
    assert "No module named 'torch'" in said("python", "-c", "import torch", code=1)


LOOP = """
import sys, torch, fttui
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
run = fttui.watch(model=model, optimizer=optimizer, steps=3)
for batch in run.batches([torch.randn(2, 4) for _ in range(3)]):
    loss = model(batch).square().mean()
    loss.backward()
    run.log(loss=loss)
    optimizer.step()
    optimizer.zero_grad()
run.end()
print(run.step, "zmq" in sys.modules)
"""


@pytest.mark.slow
def test_a_loop_is_watched_where_torch_is_the_only_training_library(tmp_path: Path) -> None:
    lacking = SCRIPTS | {"transformers", "accelerate"}
    done = python_without(lacking, LOOP, FTTUI_RUNS=str(tmp_path), HOME=str(tmp_path))
    assert (done.returncode, done.stdout) == (0, "3 False\n"), done.stderr
    assert "an error of fttui" not in done.stderr
    (saved,) = tmp_path.glob("*/checkpoints/*/MANIFEST.json")
    assert '"torch"' in saved.read_text()


def test_the_table_of_commands_names_what_each_module_registers() -> None:
    for module, commands in MODULES.items():
        parser = argparse.ArgumentParser()
        registered = parser.add_subparsers()
        import_module(module, "fttui.tui.cli").add_commands(registered)
        assert tuple(registered.choices) == commands
    files = {name.lstrip(".").replace(".", "/") for name in MODULES}
    folder = ROOT / "tui" / "cli"
    with_commands = {
        str(file.relative_to(folder).with_suffix(""))
        for file in folder.rglob("*.py")
        if "\ndef add_commands(" in file.read_text()
    }
    assert with_commands == files


def test_a_command_line_imports_only_the_module_of_its_command() -> None:
    code = (
        "import sys; from fttui.tui.cli.main import build_parser; build_parser('bridge');"
        "print(*(name in sys.modules for name in ('fttui.tui.cli.bridge', 'fttui.tui.cli.run')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True False\n"
