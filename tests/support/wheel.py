"""The wheel of fttui, and an environment that holds it with the packages that it requires."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

from tests.contract.links import ROOT

PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
BUILD_FROM = (
    "engine",
    "tui",
    "configs",
    "docs",
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "MANIFEST.in",
)


def copied_source(folder: Path) -> Path:
    """Copy what the wheel is built from."""
    source = folder / "source"
    source.mkdir()
    for name in BUILD_FROM:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    return source


def built_wheel(source: Path, folder: Path) -> Path:
    """Build the wheel of a copy."""
    words = ["wheel", "--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir", str(folder)]
    _run([*PIP, *words, str(source)])
    (wheel,) = folder.glob("*.whl")
    return wheel


def light_environment(wheel: Path, folder: Path) -> Path:
    """Make an environment with the wheel and the packages that it requires without extras.

    Those are linked from this environment, so that nothing is downloaded.

    Returns:
        the folder of its programs.
    """
    _run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
    python = folder / "bin" / "python"
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(_run([str(python), "-c", where]).strip())
    _run([*PIP, "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)])
    requires = next(packages.glob("fttui-*.dist-info"))
    for found in _closure(Distribution.at(requires)):
        _link(found, packages)
    return folder / "bin"


def full_environment(wheel: Path, folder: Path) -> Path:
    """Make an environment with the wheel that also sees every package of this environment.

    Returns:
        the folder of its programs.
    """
    programs = light_environment(wheel, folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")
    return programs


def _closure(first: Distribution) -> Iterator[Distribution]:
    """Yield every distribution that one requires here without extras, directly or not."""
    seen: set[str] = set()
    waiting = [first]
    while waiting:
        for text in waiting.pop().requires or ():
            one = Requirement(text)
            wanted = one.marker is None or one.marker.evaluate({"extra": ""})
            if wanted and one.name.lower() not in seen:
                seen.add(one.name.lower())
                found = distribution(one.name)
                waiting.append(found)
                yield found


def _link(found: Distribution, packages: Path) -> None:
    """Link the top-level files and folders of a distribution."""
    names = {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}
    for name in names:
        source, target = Path(str(found.locate_file(name))), packages / name
        if source.exists() and not os.path.lexists(target):
            target.symlink_to(source)


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
