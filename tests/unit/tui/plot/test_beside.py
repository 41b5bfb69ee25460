"""Curves of variants that trained on other devices are drawn dimmed, like undone steps."""

from __future__ import annotations

from fttui.tui.plot.layers import Curve, PlotPicture, picture
from fttui.tui.view_model.branches import Branch
from fttui.tui.view_model.race.side_curve import SideCurve, branch_of
from fttui.tui.view_model.series import Series

RUN = Branch(curves={"loss": Series().extend(range(1, 41), [2.0 - 0.01 * n for n in range(40)])})
BESIDE = branch_of(SideCurve(label="lr 1", start=20, losses=dict.fromkeys(range(21, 31), 3.0)))


def drawn(**more: object) -> PlotPicture:
    curves = [Curve("loss", "loss")]
    return picture([RUN], curves, (0.0, 40.0), 40, beside=[BESIDE], **more)  # type: ignore[arg-type]


def test_it_is_drawn_in_grey_below_the_curve_of_the_run() -> None:
    old, live = drawn().layers
    assert (old.live, old.style) == (False, "old")
    assert (old.runs[0][0], old.runs[0][-1]) == ((21.0, 3.0), (30.0, 3.0))
    assert (live.live, live.style) == (True, "loss")


def test_it_is_hidden_with_the_undone_steps_and_on_axes_that_it_has_no_values_for() -> None:
    assert all(layer.live for layer in drawn(undone=False).layers)
    assert not any(layer.style == "old" and layer.runs for layer in drawn(axis="time").layers)


def test_it_does_not_change_which_steps_are_undone() -> None:
    assert drawn().undone == ()
