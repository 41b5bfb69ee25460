"""Links, commands and configurations on the pages are real."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from fttui.engine.config.foreign.reading import tool_of
from fttui.engine.config.load import load_config
from fttui.engine.errors import FttuiError
from fttui.engine.protocol.commands import CommandError, parse_command
from fttui.tui.cli.main import build_parser, main

from .links import ROOT
from .pages import PAGES, Found, anchors, blocks, commands, links, words_of

FORM = re.compile(r"[\[\]|…]|\.\.\.|fttui (--ascii )?COMMAND|completion SHELL|--to (NAME|TRACKER)")
"""Signs of a form, such as `fttui show RUN[@STEP]`, which cannot be parsed as it stands."""
BASE: dict[str, Any] = {
    "model": {"id": "some/model"},
    "data": {"train": "train.jsonl"},
    "train": {"steps": 10},
}
"""What a snippet of a configuration is put into, to be whole."""


def of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def broken(link: Found) -> str | None:
    """Why a link leads nowhere; None if it leads somewhere, or to another site."""
    target, _, anchor = link.text.partition("#")
    if re.match(r"[a-z]+:", target):
        return None
    file = (link.page.parent / target).resolve() if target else link.page
    if not file.exists():
        return f"{link}: there is no {target}"
    if anchor and file.suffix == ".md":
        for github in (True, False):
            if anchor not in anchors(file, github=github):
                return f"{link}: no heading gives this anchor"
    return None


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = ROOT / "docs" / "app.md"
    assert broken(Found(page, 1, "no-page.md")) is not None
    assert broken(Found(page, 1, "data.md#no-such-heading")) is not None
    assert broken(Found(page, 1, "https://example.org")) is None
    assert broken(Found(page, 1, "data.md#consent")) is None


@pytest.mark.parametrize("page", PAGES, ids=of)
def test_every_link_leads_somewhere(page: Path) -> None:
    assert [found for link in links(page) if (found := broken(link))] == []


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    listed: list[str] = []

    def collect(entry: Any) -> None:
        if isinstance(entry, str):
            listed.append(entry)
        for part in entry.values() if isinstance(entry, dict) else ():
            collect(part)
        for part in entry if isinstance(entry, list) else ():
            collect(part)

    collect(site["nav"])
    pages = {str(p.relative_to(ROOT / "docs")) for p in PAGES if p.is_relative_to(ROOT / "docs")}
    assert set(listed) == pages
    assert max(Counter(listed).values()) == 1
    assert site["theme"]["font"] is False


def wrong(command: Found, capsys: pytest.CaptureFixture[str]) -> str | None:
    """Why a command is refused; None if it is one."""
    if FORM.search(command.text):
        return None
    words = [re.sub(r"^(N|P|S|GIB|SEQ)$", "3", word) for word in words_of(command.text)]
    try:
        options = build_parser().parse_args(words)
    except SystemExit as ended:
        said = capsys.readouterr().err.strip().splitlines()[-1:]
        lacks = command.named and re.search(r"(is|are) (required|missing)", "".join(said))
        return None if ended.code == 0 or lacks else f"{command}: {said}"
    return _wrong_for_a_run(command, options.words) if hasattr(options, "words") else None


def _wrong_for_a_run(command: Found, words: list[str]) -> str | None:
    """Why `ctl` refuses these words; the name of a run may come before the command."""
    if words[-1:] == ["COMMAND"] or (command.named and len(words) < 2):
        return None
    errors = []
    for start in (0, 1):
        try:
            parse_command(words[start:])
        except CommandError as error:
            errors.append(str(error))
    return f"{command}: {errors[-1]}" if len(errors) == 2 else None


def test_the_readme_stays_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_a_wrong_command_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    page = ROOT / "README.md"
    assert wrong(Found(page, 1, "fttui run my.yaml --no-such-option"), capsys) is not None
    assert wrong(Found(page, 1, "fttui rum my.yaml"), capsys) is not None
    assert wrong(Found(page, 1, "fttui ctl demo lr scael 0.5"), capsys) is not None
    assert wrong(Found(page, 1, "fttui ctl demo lr scale 0.5  # half"), capsys) is None


@pytest.mark.parametrize("page", PAGES, ids=of)
def test_every_command_on_a_page_is_one(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert [found for command in commands(page) if (found := wrong(command, capsys))] == []


def test_commands_are_found_on_the_pages() -> None:
    assert len([one for page in PAGES for one in commands(page)]) > 100


def merged(base: dict[str, Any], snippet: dict[str, Any]) -> dict[str, Any]:
    found = dict(base)
    for key, value in snippet.items():
        inner = found.get(key)
        both = isinstance(value, dict) and isinstance(inner, dict)
        found[key] = merged(inner, value) if both else value  # type: ignore[arg-type]
    return found


SNIPPETS = [
    block for page in PAGES for language, block in blocks(page) if language in ("yaml", "yml")
]


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda one: f"{of(one.page)}:{one.line}")
def test_every_configuration_on_a_page_is_read(snippet: Found, tmp_path: Path) -> None:
    first, *others = yaml.safe_load_all(snippet.text)
    if others or {"apiVersion", "num_nodes", "metric_list"} & set(first):
        return  # manifests of a cluster, which have a test of their own, and tasks of a harness
    given = first
    if tool_of(given) is not None or set(given) == {"plugins"}:
        return  # a configuration of another tool, such as a plugin of axolotl
    base = merged(BASE, {"train": {"steps": None}}) if "epochs" in str(given) else BASE
    for language, block in blocks(snippet.page):
        name = block.text.partition("\n")[0].removeprefix("# ")
        if language == "python" and name.endswith(".py"):
            (tmp_path / name).write_text(block.text, encoding="utf-8")
    file = tmp_path / "snippet.yaml"
    file.write_text(yaml.safe_dump(merged(base, given)), encoding="utf-8")
    try:
        load_config(file)
    except FttuiError as error:
        raise AssertionError(f"{snippet}{error}") from None


def sessions(page: Path) -> list[list[tuple[str, list[str]]]]:
    """The sessions of a page that are marked to be run: each command with the lines it prints."""
    found = re.findall(
        r"<!-- runs -->\n```console\n(.*?)^```$", page.read_text("utf-8"), re.M | re.S
    )
    return [_session(text) for text in found]


def _session(text: str) -> list[tuple[str, list[str]]]:
    parts: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            parts.append((line[2:], []))
        elif line.startswith("> "):
            parts[-1] = (f"{parts[-1][0]}\n{line[2:]}", parts[-1][1])
        elif line != "…":
            parts[-1][1].append(line)
    return parts


RUN_PAGES = [page for page in PAGES if sessions(page)]


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN_PAGES, ids=of)
def test_the_marked_sessions_print_what_the_page_shows(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    monkeypatch.chdir(tmp_path)
    for command, expected in (part for session in sessions(page) for part in session):
        capfd.readouterr()
        if command.startswith("fttui "):
            assert main(words_of(command)) == 0, command
        else:
            subprocess.run(["bash", "-c", command], check=True)
        said = capfd.readouterr().out
        missing = [line for line in expected if line not in said]
        assert missing == [], f"{command} printed\n{said}"


def test_sessions_are_run() -> None:
    assert len(RUN_PAGES) >= 2


@pytest.mark.long
def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    pytest.importorskip("material")
    words = ["-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=quiet, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    loading = re.compile(r"""<(?:script|link|img|iframe)[^>]*(?:src|href)=["']?(?:https?:)?//""")
    pages = [file.read_text(encoding="utf-8") for file in tmp_path.rglob("*.html")]
    assert len(pages) > 30
    assert [found[0] for page in pages for found in loading.finditer(page)] == []
