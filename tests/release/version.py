"""The version of a release is the same everywhere, and the changelog has its date.

`python -m tests.release.version v0.1.0` exits with 1 and says what differs.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def declared(root: Path = ROOT) -> dict[str, str]:
    """Return the version by the file that states it."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return {
        "pyproject.toml": str(project["version"]),
        "CITATION.cff": _found(r"^version: (\S+)$", root / "CITATION.cff"),
        "CHANGELOG.md": _found(r"^## (\S+) \(", root / "CHANGELOG.md"),
    }


def _found(pattern: str, file: Path) -> str:
    found = re.search(pattern, file.read_text(encoding="utf-8"), re.M)
    return found[1] if found else "none"


def faults(tag: str, root: Path = ROOT) -> list[str]:
    """Return what keeps a tag from being released."""
    wanted = tag.removeprefix("v")
    found = [
        f"{file}: got version {version}, expected {wanted}, as the tag {tag} says"
        for file, version in declared(root).items()
        if version != wanted
    ]
    heading = _found(r"^## \S+ \((.*)\)$", root / "CHANGELOG.md")
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", heading):
        found.append(f"CHANGELOG.md: got ({heading}), expected the date of the release")
    return found


if __name__ == "__main__":
    problems = faults(sys.argv[1])
    print("\n".join(problems) or f"{sys.argv[1]}: the version is the same everywhere")
    sys.exit(bool(problems))
