"""The wheel builds from a clean copy and holds what it should."""

from __future__ import annotations

import zipfile
from pathlib import Path

from tests.support.wheel import built_wheel, copied_source


def installed(file: str) -> str:
    """The path of a source file in the wheel; the library is the package `fttui` itself."""
    return f"fttui/{file.removeprefix('engine/library/')}"


def test_the_wheel_has_both_packages_types_and_styles(tmp_path: Path) -> None:
    source = copied_source(tmp_path)
    wheel = built_wheel(source, tmp_path)
    names = set(zipfile.ZipFile(wheel).namelist())
    for package in ("engine", "tui"):
        assert f"fttui/{package}/py.typed" in names
        files = {str(f.relative_to(source)) for f in (source / package).rglob("*.py")}
        assert {installed(file) for file in files} <= names
        styles = {str(f.relative_to(source)) for f in (source / package).rglob("*.tcss")}
        assert {f"fttui/{file}" for file in styles} <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not any(name.startswith("tests/") for name in names)
