"""Ids of viewers and commands, and the name of the user of this viewer."""

from __future__ import annotations

import getpass
import secrets
import socket


def new_viewer() -> str:
    """Return a random id for a viewer process."""
    return f"v-{secrets.token_hex(6)}"


def new_command_id() -> str:
    """Return a random id for one command."""
    return f"c-{secrets.token_hex(8)}"


def issuer() -> str:
    """Return the user and machine that issue commands here, such as `ann@laptop`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "somebody"
    return f"{user}@{socket.gethostname().partition('.')[0]}"
