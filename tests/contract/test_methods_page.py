"""The page of methods: every loss has a row, and every method of other tools is named."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from fttui.engine.config.sections.contrastive import ContrastiveConfig
from fttui.engine.config.sections.optimizers import OPTIMIZERS
from fttui.engine.config.sections.preference import PreferenceConfig
from fttui.engine.config.tasks import FORMATS_OF, PAIR_LOSSES

from .links import ROOT

PAGE = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
NOT_OFFERED = PAGE[PAGE.index("## Not offered") :]
COLUMNS = 7


def rows() -> list[list[str]]:
    table = PAGE[PAGE.index("| method |") : PAGE.index('"Static shapes"')].strip().splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]


def named(text: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", text))


def kinds(section: type, key: str) -> set[str]:
    return set(get_args(get_type_hints(section)[key])) - {"off"}


def test_every_loss_has_a_row() -> None:
    methods = [(named(row[0]), row[0]) for row in rows()]
    by_task = {task: set[str]() for task in FORMATS_OF}
    for names, cell in methods:
        (task,) = [task for task in by_task if cell.startswith(f"`{task}`")]
        by_task[task] |= names
    assert by_task["dpo"] >= {*PAIR_LOSSES, "f_divergence", "ld_alpha", "reward_alpha"}
    assert by_task["kto"] >= kinds(PreferenceConfig, "rated_loss")
    assert by_task["contrastive"] | by_task["sft"] >= kinds(ContrastiveConfig, "kind")
    assert by_task["sft"] >= {"packing", "focal", "label_smoothing"}
    assert by_task["reward"]


def test_every_cell_has_a_mark_or_a_reason() -> None:
    for row in rows():
        assert len(row) == COLUMNS
        for cell in row[1:]:
            assert cell.startswith("●") or re.match(r"(as `|no: )", cell), (row[0], cell)


def classes(package: str, ending: str) -> Iterator[str]:
    """The public classes of an installed package whose names have an ending."""
    spec = find_spec(package.partition(".")[0])
    if spec is None or spec.origin is None:
        pytest.skip(f"{package} is not installed")
    folder = Path(spec.origin).parent.joinpath(*package.split(".")[1:])
    for file in sorted(folder.rglob("*.py")):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            named_so = isinstance(node, ast.ClassDef) and node.name.endswith(ending)
            if isinstance(node, ast.ClassDef) and named_so and not node.name.startswith("_"):
                yield node.name


def test_every_trainer_of_trl_is_named() -> None:
    known = {"trl.trainer", "trl.experimental"}
    found = {name for package in known for name in classes(package, "Trainer")}
    assert len(found) > 10
    assert found - named(NOT_OFFERED) == set()


def test_every_loss_of_sentence_transformers_is_named() -> None:
    found = set(classes("sentence_transformers.sentence_transformer.losses", "Loss"))
    assert len(found) > 20
    cached = {name for name in found if name.removeprefix("Cached") in named(NOT_OFFERED)}
    assert found - cached - named(NOT_OFFERED) == set()


def test_every_optimizer_of_pytorch_optimizer_is_named() -> None:
    optimizers = pytest.importorskip("pytorch_optimizer").get_supported_optimizers()
    own = {name.replace("_", "") for name in OPTIMIZERS}
    assert set(optimizers) - own - named(NOT_OFFERED) == set()
    assert not own & named(NOT_OFFERED[NOT_OFFERED.index("### Optimizers") :]) - {"adamw"}
