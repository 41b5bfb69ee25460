from __future__ import annotations

import os
from pathlib import Path

import pytest

from fttui.engine.errors import FttuiError
from fttui.engine.run.reports import read_report, report_names
from fttui.engine.run.run_dir import RunDirectory
from tests.support.engine_double import make_run


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = make_run(tmp_path)
    for age, name in ((30, "b1"), (20, "a2-t2")):
        file = run.reports / f"{name}.md"
        file.write_text(f"# {name} äö\n", encoding="utf-8")
        os.utime(file, (1000 - age, 1000 - age))
        (run.reports / f"{name}.json").write_text("{}")
    return run


def test_reports_are_listed_oldest_first_and_once(run: RunDirectory) -> None:
    assert report_names(run) == ["b1", "a2-t2"]


@pytest.mark.parametrize("name", ["b1", "b1.md", "b1.json"])
def test_a_report_is_read_by_its_name_with_or_without_a_suffix(
    run: RunDirectory, name: str
) -> None:
    assert read_report(run, name) == "# b1 äö\n"


@pytest.mark.parametrize("name", ["c3", "", "../config", ".b1", "b1/../b1"])
def test_another_name_is_refused_with_the_existing_ones(run: RunDirectory, name: str) -> None:
    (run.path / "config.md").write_text("secret")
    with pytest.raises(FttuiError, match=r"existing reports: b1, a2-t2$"):
        read_report(run, name)


def test_a_run_without_reports_says_so(tmp_path: Path) -> None:
    with pytest.raises(FttuiError, match=r"no report 'b1' in .*; existing reports: none"):
        read_report(make_run(tmp_path), "b1")


def test_a_report_is_read_in_both_of_its_forms(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    run.reports.mkdir(exist_ok=True)
    for form in ("md", "json"):
        (run.reports / f"c3.{form}").write_text(form)
    assert read_report(run, "c3") == "md"
    assert read_report(run, "c3.md", form="json") == "json"
