"""`bridge`: the far end of a remote viewer, started by ssh and not meant for typing."""

from __future__ import annotations

import argparse
import sys

from fttui.engine.errors import ConfigError
from fttui.engine.run.run_dir import require_runs_folder, runs_root

from .options import Commands, add_runs_dir


def add_commands(commands: Commands) -> None:
    """Add the subcommand."""
    bridge = commands.add_parser(
        "bridge",
        help="the far end of attach over ssh",
        description="Started on the far side by `fttui attach HOST`. As a forced command in "
        'authorized_keys, such as command="fttui bridge --read-only",restrict, it limits a key '
        "to watching; what that key's owner asks ssh to run is then not looked at.",
    )
    bridge.add_argument("--run", metavar="RUN", help="show this run and no other")
    bridge.add_argument("--read-only", action="store_true", help="let the viewer only watch")
    add_runs_dir(bridge)
    bridge.set_defaults(handler=_bridge)


def _bridge(options: argparse.Namespace) -> int:
    if sys.stdin.isatty() or sys.stdout.isatty():
        raise ConfigError(
            "the bridge speaks to a viewer on another machine, not to a person; "
            "watch a run here with: fttui attach"
        )
    root = runs_root(options.runs_dir)
    if options.runs_dir is not None:
        require_runs_folder(root)
    from importlib.metadata import version

    from fttui.engine.hub.ssh_bridge.main import serve
    from fttui.engine.hub.ssh_bridge.server import BridgeTerms

    terms = BridgeTerms(
        runs=root,
        version=version("fttui"),
        run=options.run,
        read_only=options.read_only,
    )
    return serve(terms)
