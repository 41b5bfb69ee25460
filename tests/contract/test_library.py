"""`import fttui` gives the library, under one name only, and loads nothing heavy."""

from __future__ import annotations

import subprocess
import sys


def python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_library_loads_neither_torch_nor_zeromq() -> None:
    heavy = "[m for m in ('torch', 'transformers', 'zmq', 'textual', 'numpy') if m in sys.modules]"
    assert python(f"import sys, fttui; fttui.watch, fttui.unwatch; print({heavy})") == "[]"


def test_the_library_has_one_name() -> None:
    code = (
        "import fttui\n"
        "try:\n    import fttui.engine.library\n"
        "except ImportError as error:\n    print(error)"
    )
    assert "use: import fttui" in python(code)


def test_switched_off_it_returns_the_trainer_and_loads_nothing() -> None:
    code = (
        "import os, sys; os.environ['FTTUI'] = 'off'; import fttui; o = object()\n"
        "print(fttui.watch(o) is o, [m for m in sys.modules if m.startswith('fttui.engine')])"
    )
    assert python(code) == "True []"
