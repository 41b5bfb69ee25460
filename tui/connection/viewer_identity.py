"""Who sits at this viewer, and ids nobody else will use."""

from __future__ import annotations

import getpass
import secrets
import socket


def new_viewer() -> str:
    """A random id for this viewer process."""
    return f"v-{secrets.token_hex(6)}"


def new_command_id() -> str:
    """A random id for one command."""
    return f"c-{secrets.token_hex(8)}"


def issuer() -> str:
    """Such as `ann@laptop`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "somebody"
    return f"{user}@{socket.gethostname().partition('.')[0]}"
