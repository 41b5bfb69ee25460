"""A plugin of axolotl: one line in its configuration puts the training under control of fttui.

    plugins:
      - fttui.axolotl.Plugin

Only axolotl imports this module.
"""

from __future__ import annotations

from typing import Any

from axolotl.integrations.base import BasePlugin

from . import watch


class Plugin(BasePlugin):  # type: ignore[misc]  # axolotl is untyped
    """Watches the trainer that axolotl has built."""

    def post_trainer_create(self, cfg: Any, trainer: Any) -> None:
        """Watch the trainer; one that cannot be watched trains as before, and a line says why."""
        watch(trainer)
