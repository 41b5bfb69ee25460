"""Checks across several keys of a configuration, and against the data files, model and machine."""

from __future__ import annotations

from ..schema import RunConfig
from .batch import check_batch
from .budget import check_budget
from .data import ACCEPTED_FILES, DATA, FIELDS, FILE_SUFFIXES, check_sources, describe_missing
from .forgetting import check_forgetting
from .machine import check_experts, check_hardware, check_model, check_vision
from .objective import OBJECTIVE
from .problem import Problem, require
from .quantized import check_quantized, stored_quantization
from .sharding import check_sharding
from .source_paths import (
    HUB_FILE,
    broken_links_of_pattern,
    files_of_pattern,
    is_broken_link,
    is_pattern,
    root_of_pattern,
)
from .training import TRAINING
from .user_metrics import check_benchmarks

__all__ = [
    "ACCEPTED_FILES",
    "FIELDS",
    "FILE_SUFFIXES",
    "HUB_FILE",
    "Problem",
    "broken_links_of_pattern",
    "check_batch",
    "check_config",
    "check_experts",
    "check_hardware",
    "check_model",
    "check_quantized",
    "check_sources",
    "check_vision",
    "describe_missing",
    "files_of_pattern",
    "is_broken_link",
    "is_pattern",
    "require",
    "root_of_pattern",
    "stored_quantization",
]


def check_config(config: RunConfig) -> list[Problem]:
    """Return the contradictions within a configuration, whatever machine it runs on."""
    own = (check_batch, check_benchmarks, check_budget, check_forgetting, check_sharding)
    checks = (*own, *OBJECTIVE, *DATA, *TRAINING)
    return [problem for check in checks for problem in check(config)]
