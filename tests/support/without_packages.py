"""Python as it is where some packages are not installed.

    python -m tests.support.without_packages trl,peft CODE

runs the code in a process that finds neither the modules nor the metadata of these packages.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import Distribution
from types import ModuleType
from typing import Any

from tests.contract.links import ROOT


class Without(PathFinder):
    """Finds on the path everything but some packages."""

    packages: frozenset[str] = frozenset()

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module, unless it belongs to one of the packages."""
        if fullname.partition(".")[0] in cls.packages:
            return None
        return super().find_spec(fullname, path, target)

    @classmethod
    def find_distributions(cls, *arguments: Any, **named: Any) -> Iterable[Distribution]:  # type: ignore[override]  # the base class takes one context
        """Find the metadata of everything but the packages."""
        for found in super().find_distributions(*arguments, **named):
            if found.metadata["Name"].replace("-", "_") not in cls.packages:
                yield found


def python_without(
    packages: Iterable[str], code: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run code in a Python that lacks some packages."""
    words = [sys.executable, "-m", "tests.support.without_packages", ",".join(packages), code]
    return subprocess.run(
        words,
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


if __name__ == "__main__":
    Without.packages = frozenset(sys.argv[1].replace("-", "_").split(","))
    sys.meta_path[sys.meta_path.index(PathFinder)] = Without
    program = compile(sys.argv[2], "<code>", "exec")
    sys.argv = ["-c"]
    exec(program, {"__name__": "__main__"})
