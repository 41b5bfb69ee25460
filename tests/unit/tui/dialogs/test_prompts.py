from __future__ import annotations

from unittest.mock import Mock

import pytest

from fttui.engine.protocol.commands import ResetLr, RunSteps, ScaleLr, SetClip, SetLr, SkipBatches
from fttui.engine.protocol.settings import RunSettings
from fttui.tui.dialogs.prompts import (
    percentile,
    read_clip,
    read_command,
    read_count,
    read_lr,
    read_recipe,
    read_text,
)
from fttui.tui.screens.handlers import action_handlers
from fttui.tui.view_model.app_state import AppState
from fttui.tui.view_model.reducer import apply_many
from fttui.tui.view_model.run_view import RunView
from tests.support.session_double import Script


@pytest.fixture
def run() -> RunView:
    script = Script(settings=RunSettings(lr_scale=0.5, clip=1.0)).start().run().train(200)
    return apply_many(RunView(), script.records)


@pytest.mark.parametrize("text", ["×0.5", "x0.5", "*0.5", " X0.5 "])
def test_a_factor_is_relative_to_the_scale_in_force_and_sent_absolute(
    run: RunView, text: str
) -> None:
    asked = read_lr(text, run)
    assert asked.command == ScaleLr(factor=0.25)
    assert asked.relative
    assert "× 0.25 scale =" in asked.preview


@pytest.mark.parametrize("text", ["=1e-4", "1e-4", "0.0001"])
def test_a_value_sets_the_effective_rate(run: RunView, text: str) -> None:
    asked = read_lr(text, run)
    assert asked.command == SetLr(value=1e-4)
    assert asked.preview.endswith("= 1.00e-4")
    assert not asked.relative


def test_reset(run: RunView) -> None:
    asked = read_lr("reset", run)
    assert asked.command == ResetLr()
    assert "× 1 scale" in asked.preview


@pytest.mark.parametrize("text", ["x", "×-1", "xnan", "abc", "=0", "-1", "x0", "inf", "=x2"])
def test_nonsense_is_an_error_and_no_command(run: RunView, text: str) -> None:
    asked = read_lr(text, run)
    assert asked.command is None
    assert asked.error


def test_a_bare_factor_is_not_taken_for_a_learning_rate(run: RunView) -> None:
    assert "type x0.5" in read_lr("0.5", run).error


def test_an_empty_prompt_says_what_is_in_force(run: RunView) -> None:
    assert read_lr("", run).preview.startswith("now: ")
    assert read_clip("", run).preview.startswith("now: 1.000")


@pytest.mark.parametrize(
    ("text", "step"), [("7", 7), ("1,00", 100), ("0012", 12), ("0", 0), ("9" * 5000, 200)]
)
def test_a_number_is_a_step_of_the_run(run: RunView, text: str, step: int) -> None:
    assert read_command(text, AppState(run=run)).goto == step


@pytest.mark.parametrize("text", ["²", "٣", ",", "'"])
def test_what_only_looks_like_a_number_is_an_error(run: RunView, text: str) -> None:
    asked = read_command(text, AppState(run=run))
    assert (asked.goto, asked.command) == (None, None)
    assert asked.error


def test_clip_forms(run: RunView) -> None:
    assert read_clip("0.5", run).command == SetClip(value=0.5)
    assert read_clip("off", run).command == SetClip()
    p90 = read_clip("p90", run)
    assert p90.command == SetClip(percentile=90.0)
    assert "≈" in p90.preview
    assert "must be > 0" in read_clip("-1", run).error


def test_counts(run: RunView) -> None:
    assert read_count("run", "50", run).command == RunSteps(steps=50)
    assert read_count("run", "50", run).preview == "trains steps 201 to 250, then pauses"
    assert read_count("skip", "12", run).command == SkipBatches(steps=12)
    assert read_count("skip", "0", run).error
    assert read_count("skip", "", run) == read_count("run", "", run)


def test_a_note_keeps_its_quotes_and_spaces(run: RunView) -> None:
    asked = read_text("note", 'it\'s "odd"', "marks")
    assert asked.command is not None
    assert asked.command.text == 'it\'s "odd"'  # type: ignore[union-attr] # a note
    assert read_text("policy nonfinite", "explode", "").error


def test_percentiles() -> None:
    assert percentile([], 50) is None
    assert percentile([3.0, 1.0, 2.0], 50) == 2.0
    assert percentile([3.0, 1.0, 2.0], 100) == 3.0


def test_no_step_yet_needs_no_preview() -> None:
    assert "no step yet" in read_lr("x0.5", RunView()).preview
    assert read_lr("x0.5", RunView()).command == ScaleLr(factor=0.5)


def test_a_schedule_after_the_last_step_is_an_error_before_it_is_sent(run: RunView) -> None:
    assert run.started is not None
    late = f"schedule linear from={run.started.total_steps}"
    assert "would have no effect" in read_recipe(late, run).error
    assert "would have no effect" in read_command(late, AppState(run=run)).error
    assert read_recipe("schedule linear from=210", run).command is not None


def test_the_examples_of_every_prompt_fit_a_terminal_of_80_columns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: dict[str, str] = {}

    def noted(title: str, forms: str, *_: object, **__: object) -> None:
        asked[title] = f"such as: {forms}"

    monkeypatch.setattr(action_handlers, "PromptScreen", noted)
    for handler in action_handlers.HANDLERS.values():
        if handler.__qualname__.startswith("_prompt."):
            handler(Mock(count=""))
    assert len(asked) > 10
    assert [text for text in asked.values() if len(text) > 80 - len("│  │")] == []
