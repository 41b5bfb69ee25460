"""Who may import whom, and what must start fast."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from .links import ROOT, link_tree

HEAVY = {"torch", "transformers", "trl", "peft", "bitsandbytes", "accelerate", "datasets", "numpy"}
LIGHT = ["fttui.engine", "fttui.engine.protocol", "fttui.engine.run", "fttui.engine.config"]
LIGHT += ["fttui.engine.core", "fttui.engine.hub", "fttui.tui"]

_LIST_MODULES = """
import importlib, json, pkgutil, sys
loaded = {}
for name in sys.argv[1:]:
    package = importlib.import_module(name)
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        deep = name != "fttui.engine" or found.name.count(".") == 2 and not found.ispkg
        if deep and not found.name.endswith("__main__"):
            importlib.import_module(found.name)
    loaded[name] = sorted({name.split(".")[0] for name in sys.modules})
print(json.dumps(loaded))
"""


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_import_contracts_hold(tmp_path: Path) -> None:
    lint = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = python("-c", lint, PYTHONPATH=str(link_tree(tmp_path)))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


def test_the_processes_of_run_and_export_start_without_the_training_stack() -> None:
    """Viewers see the engine load, and it can set what torch reads when it is imported.

    An export reports a missing checkpoint before it loads torch.
    """
    code = (
        "import sys, fttui.engine.__main__, fttui.engine.export.__main__;"
        "print(*sorted(m for m in sys.modules if '.' not in m))"
    )
    loaded = set(python("-c", code).stdout.split())
    assert "fttui" in loaded
    assert loaded & (HEAVY - {"numpy"}) == set()


def test_light_packages_load_no_training_stack() -> None:
    done = python("-c", _LIST_MODULES, *LIGHT)
    assert done.returncode == 0, done.stderr
    loaded = json.loads(done.stdout)
    assert list(loaded) == LIGHT
    for package, modules in loaded.items():
        drawing = {"numpy"} if package == "fttui.tui" else set()
        assert (HEAVY - drawing).isdisjoint(modules), package


def test_the_command_line_starts_without_a_training_stack() -> None:
    code = "import sys; from fttui.tui.cli.main import main; print(sorted(m for m in sys.modules))"
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    assert not any(f"'{name}'" in done.stdout for name in HEAVY)
    assert "'textual'" not in done.stdout
