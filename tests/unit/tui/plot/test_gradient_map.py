"""The map of gradient norms: its place for every module, its levels, and the modules it names."""

from __future__ import annotations

import math

import pytest

from fttui.engine.protocol.event_parts import ModuleFlow
from fttui.engine.protocol.events import GradientsMeasured
from fttui.tui.plot.gradient_map import DEAD, EXPLODING, LEVELS, faults_named, gradient_map
from fttui.tui.screens.plots.gradients import gradient_rows

KINDS = ("self_attn.q_proj", "mlp.up_proj")


def _flow(
    layers: int,
    norms: dict[str, float] | None = None,
    dead: list[str] | None = None,
    exploding: list[str] | None = None,
) -> GradientsMeasured:
    names = [f"layers.{n}.{kind}" for n in range(layers) for kind in KINDS]
    found = dict.fromkeys(names, 0.5) | (norms or {})
    modules = [
        ModuleFlow(module=name, grad_norm=norm, update_norm=0.1, weight_norm=1.0)
        for name, norm in found.items()
    ]
    return GradientsMeasured(modules=modules, dead=dead or [], exploding=exploding or [])


def test_every_module_has_a_cell_at_its_layer_and_kind() -> None:
    found = gradient_map(_flow(30), 90)
    assert list(found.rows) == list(KINDS)
    assert found.layers == tuple(range(30))
    assert {len(cells) for cells in found.rows.values()} == {30}
    assert found.width == 3
    assert found.median_norm == 0.5
    levels = {cell.level for cells in found.rows.values() for cell in cells if cell}
    assert levels == {LEVELS // 2}


@pytest.mark.parametrize(
    ("norm", "level"),
    [(0.5, 4), (0.05, 2), (5.0, 6), (5e-9, 0), (5e9, 8), (0.0, 0), (math.inf, 8), (math.nan, 8)],
)
def test_a_level_is_the_logarithm_of_the_ratio_to_the_median(norm: float, level: int) -> None:
    found = gradient_map(_flow(12, {"layers.7.mlp.up_proj": norm}), 100)
    cell = found.rows["mlp.up_proj"][7]
    assert cell is not None
    assert cell.level == level


def test_a_fault_is_seen_even_where_several_layers_share_a_column() -> None:
    name = "layers.61.mlp.up_proj"
    found = gradient_map(_flow(80, {name: 400.0}, exploding=[name]), 20)
    assert len(found.layers) == 20
    cell = found.rows["mlp.up_proj"][61 // 4]
    assert cell is not None
    assert (cell.sign, cell.fault) == (EXPLODING, "exploding")
    assert sum(c is not None and bool(c.fault) for c in found.rows["mlp.up_proj"]) == 1


def test_faults_are_named_with_their_ratio_worst_first() -> None:
    flow = _flow(
        4, {"layers.0.mlp.up_proj": 21.0, "layers.1.mlp.up_proj": 210.0, "lm_head": 0.0},
        exploding=["layers.0.mlp.up_proj", "layers.1.mlp.up_proj"], dead=["lm_head"],
    )  # fmt: skip
    assert faults_named(flow) == [
        ("exploding", ["layers.1.mlp.up_proj ×420", "layers.0.mlp.up_proj ×42"]),
        ("dead", ["lm_head ×0"]),
    ]
    assert gradient_map(flow, 40).rows["lm_head"][0] is not None


@pytest.mark.parametrize("width", [54, 76, 116, 196])
@pytest.mark.parametrize("layers", [1, 30, 126])
def test_no_line_is_wider_than_the_screen(width: int, layers: int) -> None:
    name = "layers.0.mlp.up_proj"
    rows = gradient_rows(_flow(layers, {name: 0.0}, dead=[name]), width)
    assert max(row.cell_length for row in rows[:-2]) <= width
    assert any(DEAD in row.plain.partition("up_proj")[2] for row in rows)


def test_without_any_gradient_the_map_is_drawn() -> None:
    flow = _flow(3, {f"layers.{n}.{kind}": 0.0 for n in range(3) for kind in KINDS})
    assert gradient_map(flow, 40).median_norm == 1.0
