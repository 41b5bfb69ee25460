"""The apprise addresses of the user; they are secrets, and stay out of run folders and logs."""

from __future__ import annotations

import os
from pathlib import Path

from ...errors import ConfigError

VARIABLE = "FTTUI_NOTIFY_URLS"
"""Environment variable with addresses, separated by spaces or commas."""
_MOST_BYTES = 64 * 1024


def addresses_file() -> Path:
    """Return the file with an address on each line; `#` begins a comment line."""
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "fttui" / "notify-urls"


def has_addresses() -> bool:
    """Whether the user has named any address; the file is not read."""
    return bool(os.environ.get(VARIABLE, "").strip()) or addresses_file().is_file()


def read_addresses() -> list[str]:
    """Return the addresses of the environment variable, or of the file if it names none.

    Raises:
        ConfigError: the file cannot be read, or others may read it.
    """
    if named := os.environ.get(VARIABLE, "").replace(",", " ").split():
        return named
    path = addresses_file()
    try:
        mode = path.stat().st_mode
        text = path.read_bytes()[:_MOST_BYTES].decode()
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    if mode & 0o077:
        raise ConfigError(
            f"{path} has mode {mode & 0o777:o}, expected 600, because addresses hold passwords; "
            f"correct that with: chmod 600 {path}"
        )
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]
