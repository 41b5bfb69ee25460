"""The command `fttui`, also as `python -m fttui.tui`."""

from __future__ import annotations

import sys

INTERRUPTED = 130


def main() -> int:
    """Import and run the command line; return the exit code.

    The import is inside the `try`, because it takes a second on a busy machine and Ctrl-C at that
    time has to end the command as quietly as later.

    Raises:
        SystemExit: the arguments are invalid (exit code 2), or ask for help or the version (0).
    """
    try:
        from .cli.main import main as command_line

        return command_line()
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
