"""`python -m fttui.tui.cli.reference docs/reference` writes the pages into a folder."""

from __future__ import annotations

import sys
from pathlib import Path

from .commands import commands_page
from .keys import keys_page

PAGES = {"keys.md": keys_page, "commands.md": commands_page}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (Path(sys.argv[1]) / name).write_text(page(), encoding="utf-8")
