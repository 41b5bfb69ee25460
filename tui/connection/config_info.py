"""Reading of a run's configuration files for display: its settings and its planned memory."""

from __future__ import annotations

from typing import Any

from fttui.engine.errors import FttuiError
from fttui.engine.protocol.requests import ConfigTexts

from ..view_model.config_view import ConfigView, resolved_keys


def config_view(files: ConfigTexts) -> ConfigView:
    """Return the settings and planned memory, as far as the files and this machine allow."""
    resolved = resolved_keys(_tree(files.resolved), _tree(files.source), files.overrides)
    gpu, cpu = _planned(files.resolved)
    return ConfigView(resolved=resolved, gpu_bytes=gpu, cpu_bytes=cpu)


def _tree(text: str) -> dict[str, Any]:
    # Imported here, because the first screen is drawn without it.
    from fttui.engine.config.yaml_tree import parse_yaml

    try:
        found = parse_yaml(text, "config.yaml", []).plain()
    except FttuiError:
        return {}
    return found if isinstance(found, dict) else {}


def _planned(resolved: str) -> tuple[dict[str, int], dict[str, int]]:
    """Return the memory terms on a GPU and on a CPU, empty if the model's shape is unknown here."""
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
