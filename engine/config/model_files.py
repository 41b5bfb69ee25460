"""Read the settings of a model or an adapter, which may come from elsewhere, within a limit."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

MOST_BYTES = 64 * 2**20
"""Largest size of a file of settings; most have a few KB, and the largest known ones a few MB."""


def is_template_text(template: str) -> bool:
    """Whether `data.template` is the Jinja text itself, and not a file or the name of one."""
    return "{" in template or "\n" in template


def read_settings_file(file: Path) -> bytes:
    """Return the content of a file of settings, such as `tokenizer_config.json`.

    Raises:
        OSError: It cannot be read, or is larger than any such file.
    """
    with file.open("rb") as opened:
        content = opened.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        size = max(len(content), file.stat().st_size)
        raise OSError(
            errno.EFBIG, f"it has {size:,} bytes, expected at most {MOST_BYTES:,}", str(file)
        )
    return content


def parsed_settings(file: Path) -> Any:
    """Return the parsed content of a JSON file of settings.

    Raises:
        OSError: It cannot be read, or is larger than any such file.
        ValueError: It is not JSON, or nested too deeply.
    """
    try:
        return json.loads(read_settings_file(file))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
