"""`fttui run --headless` over the engine double: the same code with another program to start."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from fttui.engine.errors import FttuiError
from fttui.tui.cli.headless import follow
from fttui.tui.connection.engine_process import start_engine
from tests.support.engine_double import make_run


def main() -> int:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whatever started the tests may ignore it
    engine = start_engine(make_run(Path(os.environ["FTTUI_RUNS"])), 1, program=sys.argv[1])
    try:
        return follow(engine, lambda line: print(line, flush=True))
    except FttuiError as error:
        print(error, file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
