"""Checks the arguments of a call against the JSON schema of its tool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fttui.engine.errors import ConfigError


def require_valid(tool: str, arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> None:
    """Refuse arguments that the schema of a tool does not allow.

    Args:
        tool: name of the tool, for the text of the refusal.
        arguments: the arguments of a call.
        schema: the JSON schema that the tool announces.

    Raises:
        ConfigError: an argument is missing, unknown, or of another type or range.
    """
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match

    error = best_match(Draft202012Validator(schema).iter_errors(arguments))
    if error is not None:
        place = "".join(f"{part}: " for part in error.absolute_path)
        raise ConfigError(f"{tool}: {place}{error.message}")
