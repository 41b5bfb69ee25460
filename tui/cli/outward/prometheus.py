"""`prometheus`: serve the newest figures of a run on this machine."""

from __future__ import annotations

import argparse
import threading

from fttui.engine.errors import ConfigError

from ..options import Commands, add_run, chosen_run, say

_HIGHEST_PORT = 65535


def add_commands(commands: Commands) -> None:
    """Register the subcommand `prometheus` of `fttui`."""
    parser = commands.add_parser(
        "prometheus", help="serve the newest figures of a run to Prometheus, on 127.0.0.1 alone"
    )
    add_run(parser)
    parser.add_argument(
        "--port", type=int, required=True, metavar="P", help="the port; 0 takes a free one"
    )
    parser.set_defaults(handler=_serve)


def _serve(options: argparse.Namespace) -> int:
    from fttui.engine.followers.prometheus import HOST, start_server

    if not 0 <= options.port <= _HIGHEST_PORT:
        raise ConfigError(f"--port: got {options.port}, expected 0 to {_HIGHEST_PORT}")
    run = chosen_run(options, live=False)
    try:
        port = start_server(run, options.port)
    except OSError as error:
        raise ConfigError(
            f"--port: {HOST}:{options.port} cannot be used ({error}); name another port, or 0"
        ) from None
    say(f"{run.id}: http://{HOST}:{port}/metrics until Ctrl-C")
    threading.Event().wait()
    return 0
