"""`python -m fttui.engine.run.reference docs/reference` writes the pages into a folder."""

from __future__ import annotations

import sys
from pathlib import Path

from .events import events_page
from .run_folder import run_folder_page
from .wire import wire_page

PAGES = {"events.md": events_page, "wire.md": wire_page, "run-folder.md": run_folder_page}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (Path(sys.argv[1]) / name).write_text(page(), encoding="utf-8")
