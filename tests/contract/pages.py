"""What the pages of the documentation hold: links, anchors, commands and configurations."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .links import ROOT

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
_FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```$", re.M | re.S)
_LINK = re.compile(r"!?\[[^\]\n]*(?:\n[^\]\n]*)?\]\(([^)\s]+)\)")
_INLINE = re.compile(r"(?<!`)`(fttui [^`]+)`(?!`)")


@dataclass(frozen=True)
class Found:
    """Something on a page: its file, line and text."""

    page: Path
    line: int
    text: str
    named: bool = False
    """Whether a sentence names it, perhaps without what it needs to run."""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}: {self.text}"


def blocks(page: Path) -> Iterator[tuple[str, Found]]:
    """Yield the fenced blocks of a page with their languages."""
    text = page.read_text(encoding="utf-8")
    for found in _FENCE.finditer(text):
        body = re.sub(rf"^{found[1]}", "", found[3], flags=re.M)
        yield found[2], Found(page, text.count("\n", 0, found.start()) + 2, body)


def prose(page: Path) -> str:
    """Return a page with its fenced blocks blank, so that lines keep their numbers."""
    text = page.read_text(encoding="utf-8")
    return _FENCE.sub(lambda found: "\n" * found[0].count("\n"), text)


def links(page: Path) -> Iterator[Found]:
    """Yield the targets of all links and pictures of a page."""
    text = prose(page)
    for found in _LINK.finditer(text):
        yield Found(page, text.count("\n", 0, found.start()) + 1, found[1])


def anchors(page: Path, *, github: bool) -> set[str]:
    """Return the anchors of a page's headings, as GitHub or as the site makes them."""
    found: dict[str, int] = {}
    named = set()
    for heading in re.findall(r"^#{1,6} (.+?)\s*$", prose(page), re.M):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        kept = re.sub(r"[^\w\s-]", "", plain).strip()
        slug = re.sub(r"\s", "-", kept) if github else re.sub(r"[-\s]+", "-", kept)
        count = found.get(slug, 0)
        found[slug] = count + 1
        named.add(f"{slug}{'-' if github else '_'}{count}" if count else slug)
    return named


def commands(page: Path) -> Iterator[Found]:
    """Yield every `fttui …` command of a page, in blocks and in the text."""
    for language, block in blocks(page):
        if language in ("", "sh", "bash", "console"):
            for number, line in enumerate(_joined(block.text)):
                if found := re.match(r"\s*(?:\$ )?(?:ssh \S+ )?(?:\S*/)?(fttui .*)", line):
                    yield Found(page, block.line + number, found[1])
    text = prose(page)
    for found in _INLINE.finditer(text):
        words = " ".join(found[1].split())
        yield Found(page, text.count("\n", 0, found.start()) + 1, words, named=True)


def _joined(text: str) -> list[str]:
    """Return the lines of a block; one that ends with a backslash is continued, blanks follow."""
    lines = text.split("\n")
    for at in range(len(lines) - 1, 0, -1):
        if lines[at - 1].endswith("\\"):
            lines[at - 1], lines[at] = f"{lines[at - 1][:-1]} {lines[at].strip()}", ""
    return lines


def words_of(command: str) -> list[str]:
    """Return the words of a command after `fttui`, without comments and redirections."""
    words = shlex.split(command, comments=True)[1:]
    for at, word in enumerate(words):
        if re.fullmatch(r"[12]?>+|\||&&|;|&", word):
            return words[:at]
    return words
