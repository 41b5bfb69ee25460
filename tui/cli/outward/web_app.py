"""`python -m fttui.tui.cli.outward.web_app RUN_DIR`: the read-only app for a browser.

The server of `fttui web` starts one for each page. It shows one run of this machine, sends no
command, starts no process, opens no other run, writes no file, and reads no preferences.
"""

from __future__ import annotations

import sys
from pathlib import Path

from textual.drivers.web_driver import WebDriver

from fttui.engine.run.run_dir import RunDirectory

from ...app import FttuiApp
from ...connection.factory import open_session
from ...preferences import Preferences


def main(arguments: list[str]) -> int:
    """Show a run until the page is closed; return the exit code."""
    run = RunDirectory(Path(arguments[0]))
    app = FttuiApp(
        open_session(run, read_only=True),
        run=run,
        preferences=Preferences(),
        driver=WebDriver,
        confined=True,
    )
    app.run()
    return app.return_value or 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
