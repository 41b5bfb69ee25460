"""Parts are wired by their constructors: nothing is set from outside later."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TRAIN = Path(__file__).parents[2] / "engine" / "train"
MODULES = sorted(TRAIN.rglob("*.py"))

TENSORS = {"grad", "data"}
"""Attributes of tensors, which training exists to change."""
LOOP_FLAGS = {"should_training_stop"}
"""How a Hugging Face callback ends or continues the loop."""
LISTS = {"global_step", "lr_scheduler", "optimizer", "_created_lr_scheduler"}
"""State of the Hugging Face trainer that its own subclass is expected to set."""


def assignments(tree: ast.AST) -> Iterator[ast.Attribute]:
    """Assigned attributes."""
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign | ast.AugAssign):
            targets = [node.target]
        for target in targets:
            parts = target.elts if isinstance(target, ast.Tuple) else [target]
            yield from (part for part in parts if isinstance(part, ast.Attribute))


def on_self(attribute: ast.Attribute) -> bool:
    """Whether a method sets an attribute of its own object, or of the state that it holds."""
    owner = ast.unparse(attribute.value)
    return owner in {"self", "ctx", "state"} or owner.startswith("self.state")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(TRAIN)))
def test_no_attribute_is_set_from_outside(path: Path) -> None:
    if path.name == "patches.py":
        return
    allowed = TENSORS | LOOP_FLAGS | LISTS
    set_from_outside = [
        f"{path.name}:{attribute.lineno} {ast.unparse(attribute)}"
        for attribute in assignments(ast.parse(path.read_text()))
        if not on_self(attribute) and attribute.attr not in allowed
    ]
    assert set_from_outside == []


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(TRAIN)))
def test_no_hook_starts_as_a_lambda_that_does_nothing(path: Path) -> None:
    hooks = [
        f"{path.name}:{node.lineno}"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Assign | ast.AnnAssign)
        and isinstance(node.value, ast.Lambda)
        and isinstance(node.value.body, ast.Constant)
    ]
    assert hooks == []


def test_every_patch_is_in_the_table() -> None:
    tree = ast.parse((TRAIN / "patches.py").read_text())
    table = ast.get_docstring(tree) or ""
    patched = {attribute.attr for attribute in assignments(tree) if attribute.attr not in TENSORS}
    assert patched
    missing = [name for name in sorted(patched) if f".{name}`" not in table]
    assert missing == []
