"""What a run's configuration files say about it."""

from __future__ import annotations

from typing import Any

from fttui.engine.errors import FttuiError
from fttui.engine.protocol.requests import ConfigTexts

from ..view_model.config_view import ConfigView, resolved_keys


def config_view(files: ConfigTexts) -> ConfigView:
    """Settings and planned memory, as far as the files and this machine tell."""
    resolved = resolved_keys(_tree(files.resolved), _tree(files.source), files.overrides)
    gpu, cpu = _planned(files.resolved)
    return ConfigView(resolved=resolved, gpu_bytes=gpu, cpu_bytes=cpu)


def _tree(text: str) -> dict[str, Any]:
    import yaml  # not at the top: the first picture need not wait for it

    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError:
        return {}
    return found if isinstance(found, dict) else {}


def _planned(resolved: str) -> tuple[dict[str, int], dict[str, int]]:
    """Memory terms on a GPU and on a CPU; empty where the model's shape is not known here."""
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
