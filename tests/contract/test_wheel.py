"""The wheel builds from a clean copy and holds what it should."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tests.release.published import tries
from tests.support.wheel import built_wheel, copied_source, full_environment, light_environment


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
    shared = {name.partition(".data/data/share/")[2] for name in names}
    assert {"man/man1/fttui.1", "fttui/configs/demo.yaml"} <= shared


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.model
@pytest.mark.timeout(900)
@pytest.mark.parametrize("train", [False, True], ids=["light", "train"])
def test_a_new_user_gets_what_the_wheel_promises(tmp_path: Path, train: bool) -> None:
    wheel = built_wheel(copied_source(tmp_path), tmp_path)
    environment = full_environment if train else light_environment
    tries(environment(wheel, tmp_path / "environment"), tmp_path / "home", train=train)
