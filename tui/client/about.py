"""Reading what a run's folder says about it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from fttui.engine.errors import FttuiError
from fttui.engine.run.layout import RunDirectory

from ..state.about import About, settings_of


def read_about(run: RunDirectory) -> About:
    """Settings and planned memory, as far as the folder and this machine know them."""
    resolved = _tree(run.config)
    overrides: list[str] = []
    with suppress(FttuiError):
        overrides = run.identity().overrides
    settings = settings_of(resolved, _tree(run.source_config), overrides)
    gpu, cpu = _planned(run)
    return About(settings=settings, gpu_bytes=gpu, cpu_bytes=cpu)


def _tree(file: Path) -> dict[str, Any]:
    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return {}
    return found if isinstance(found, dict) else {}


def _planned(run: RunDirectory) -> tuple[dict[str, int], dict[str, int]]:
    """Memory terms on a GPU and on a CPU; empty where the model's shape is not known here."""
    from fttui.engine.config.load import load_config
    from fttui.engine.config.memory import estimate_memory

    from ..cli_check import architecture_of

    try:
        config = load_config(run.config, []).config
        shape = architecture_of(config, local=True)
    except (FttuiError, OSError):
        return {}, {}
    return (
        estimate_memory(config, shape, "cuda").terms(),
        estimate_memory(config, shape, "cpu").terms(),
    )
