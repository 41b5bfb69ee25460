"""The wheel builds from a clean copy and holds what it should."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from .links import ROOT

PIP_WHEEL = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet"]
BUILD_FROM = ("engine", "tui", "pyproject.toml", "README.md", "LICENSE")


def installed(file: str) -> str:
    """The path of a source file in the wheel; the library is the package `fttui` itself."""
    return f"fttui/{file.removeprefix('engine/library/')}"


def test_the_wheel_has_both_packages_types_and_styles(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in BUILD_FROM:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    done = subprocess.run(
        [*PIP_WHEEL, "--wheel-dir", str(tmp_path), str(source)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    for package in ("engine", "tui"):
        assert f"fttui/{package}/py.typed" in names
        files = {str(f.relative_to(source)) for f in (source / package).rglob("*.py")}
        assert {installed(file) for file in files} <= names
        styles = {str(f.relative_to(source)) for f in (source / package).rglob("*.tcss")}
        assert {f"fttui/{file}" for file in styles} <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not any(name.startswith("tests/") for name in names)
