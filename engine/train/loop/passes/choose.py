"""Chooses the additional pass that the configured optimizer needs."""

from __future__ import annotations

from typing import Any

from ....config.schema import TrainConfig
from .curvature import CurvaturePass
from .extra_pass import ExtraPass, NoExtraPass
from .sharpness import SharpnessPass


def extra_pass_of(recipe: TrainConfig, trainer: Any) -> ExtraPass:
    """Return the additional pass of each step of a trainer."""
    if recipe.optimizer == "sam":
        return SharpnessPass(trainer, recipe.sam)
    if recipe.optimizer == "sophia":
        return CurvaturePass(trainer, every=recipe.sophia.every, seed=recipe.seed)
    return NoExtraPass()
