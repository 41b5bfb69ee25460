"""The packages under their installed names, as a tree of links for tools that read source."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def link_tree(folder: Path) -> Path:
    """Make `fttui/engine` and `fttui/tui` in a folder; returns the folder."""
    (folder / "fttui").mkdir()
    for name in ("engine", "tui"):
        (folder / "fttui" / name).symlink_to(ROOT / name)
    return folder
