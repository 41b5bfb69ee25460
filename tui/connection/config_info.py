"""The configuration of a run as shown: settings from its texts, and a memory estimate from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fttui.engine.errors import FttuiError
from fttui.engine.protocol.requests import ConfigTexts

from ..view_model.config_view import ConfigView, resolved_keys

if TYPE_CHECKING:
    from fttui.engine.config.yaml_tree import Value


def config_view(files: ConfigTexts) -> ConfigView:
    """Return the settings and the memory estimate of a run.

    Settings are empty if the texts cannot be parsed, the estimate also if the model's config.json
    is not on this machine or cannot be used.
    """
    resolved = resolved_keys(_tree(files.resolved), _tree(files.source), files.overrides)
    gpu, cpu = _planned(files.resolved)
    return ConfigView(resolved=resolved, gpu_bytes=gpu, cpu_bytes=cpu)


def _tree(text: str) -> dict[str, Any]:
    # Imported here, because the first screen is drawn without it.
    from fttui.engine.config.yaml_tree import parse_yaml

    try:
        found = _as_written(parse_yaml(text, "config.yaml", []))
    except FttuiError:
        return {}
    return found if isinstance(found, dict) else {}


def _as_written(value: Value) -> Any:
    """Return plain values; a number written with an exponent, such as 1e-4, stays text."""
    data = value.data
    if isinstance(data, dict):
        return {key: _as_written(child) for key, child in data.items()}
    if isinstance(data, list):
        return [_as_written(child) for child in data]
    written = value.text or ""
    return written if isinstance(data, float) and "e" in written.lower() else data


def _planned(resolved: str) -> tuple[dict[str, int], dict[str, int]]:
    """Return the memory terms of a resolved configuration in bytes, on a GPU and on a CPU.

    Both are empty if it cannot be parsed, or if the model's config.json is not on this machine or
    cannot be used.
    """
    from fttui.engine.config.load import parse_resolved
    from fttui.engine.config.memory.estimate import estimate_memory
    from fttui.engine.config.memory.planning import architecture_of

    try:
        config = parse_resolved(resolved)
        shape = architecture_of(config, local=True)
    except (FttuiError, OSError):
        return {}, {}
    return (
        estimate_memory(config, shape, "cuda").terms(),
        estimate_memory(config, shape, "cpu").terms(),
    )
