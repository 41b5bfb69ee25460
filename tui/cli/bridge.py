"""`bridge`: the remote side of `attach` over ssh; ssh starts it, users do not."""

from __future__ import annotations

import argparse
import sys

from fttui.engine.errors import ConfigError
from fttui.engine.run.run_dir import require_runs_folder, runs_root

from .options import Commands, add_runs_dir


def add_commands(commands: Commands) -> None:
    """Register the subcommand `bridge` of `fttui`."""
    bridge = commands.add_parser(
        "bridge",
        help="the remote side of attach over ssh; started by ssh",
        description="`fttui attach HOST` starts it on the remote host. As a forced command in "
        'authorized_keys, such as command="fttui bridge --read-only",restrict, it limits an ssh '
        "key to watching; the command that the client asks ssh to run is then ignored.",
    )
    bridge.add_argument("--run", metavar="RUN", help="serve this run only")
    bridge.add_argument("--read-only", action="store_true", help="refuse commands of the viewer")
    add_runs_dir(bridge)
    bridge.set_defaults(handler=_bridge)


def _bridge(options: argparse.Namespace) -> int:
    if sys.stdin.isatty() or sys.stdout.isatty():
        raise ConfigError(
            "bridge is started by ssh for a viewer on another machine; watch a run of this machine "
            "with: fttui attach"
        )
    root = runs_root(options.runs_dir)
    if options.runs_dir is not None:
        require_runs_folder(root)
    from importlib.metadata import version

    from fttui.engine.hub.ssh_bridge.main import serve
    from fttui.engine.hub.ssh_bridge.server import BridgeOptions

    terms = BridgeOptions(
        runs=root,
        version=version("fttui"),
        run=options.run,
        read_only=options.read_only,
    )
    return serve(terms)
