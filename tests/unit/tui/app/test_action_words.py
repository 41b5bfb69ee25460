"""What users type finds the action they mean, and footer and help are made of the action table."""

from __future__ import annotations

import pytest

from fttui.tui.action_words import SYNONYMS, TASKS, by_task, keys_of_screen, relevance
from fttui.tui.actions import ACTION_OF, ACTIONS
from fttui.tui.palette import entry
from fttui.tui.screens.modals.help import blocks_of, side_by_side
from fttui.tui.screens.registry import SCREENS
from fttui.tui.view_model.app_state import AppState, fold
from fttui.tui.view_model.connection_port import Link, LinkChanged, RecordsArrived
from fttui.tui.widgets.footer import offered
from tests.support.session_double import eventful


def _state(**changes: object) -> AppState:
    script = eventful()
    state = AppState(run_id="r", viewer="me", issuer="ann@laptop", **changes)  # type: ignore[arg-type] # names of fields
    return fold(state, [RecordsArrived(script.records), LinkChanged(Link.LIVE)], script.now)


def _best(query: str) -> str:
    return max(ACTIONS, key=lambda action: relevance(action, query)).id


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("lower the learning rate", "lr.change"),
        ("halve lr", "lr.change"),
        ("screenshot", "app.screenshot"),
        ("save a picture", "app.screenshot"),
        ("go back to a checkpoint", "run.rollback"),
        ("fix the spike", "anomaly.recover"),
        ("bad samples", "anomaly.culprit"),
        ("vram", "go.system"),
        ("shortcuts", "app.help"),
        ("quit", "app.detach"),
        ("clipboard", "app.copy"),
        ("resume", "run.pause"),
        ("autopilot", "policy.change"),
        ("hyperparameters", "go.config"),
        ("ema", "view.smooth"),
    ],
)
def test_words_of_users_find_the_action(query: str, found: str) -> None:
    assert _best(query) == found


def test_nonsense_finds_nothing() -> None:
    assert [a.id for a in ACTIONS if relevance(a, "zebra lr")] == []


def test_every_action_has_a_task_and_every_synonym_an_action() -> None:
    listed = [action for _, actions in by_task(ACTIONS) for action in actions]
    assert sorted(a.id for a in listed) == sorted(ACTION_OF)
    assert [task for task, _ in by_task(ACTIONS)] == list(TASKS)
    assert set(SYNONYMS) - {"app.theme", "view.undone"} <= set(ACTION_OF)


def test_an_entry_of_the_palette_is_one_line_with_the_key_at_its_end() -> None:
    line = entry("lr", "change the learning rate " * 9, "l", 80).plain
    assert len(line) == 80
    assert line.startswith("lr ")
    assert line.endswith("  l")


@pytest.mark.parametrize("mode", [*SCREENS, "page"])
def test_the_footer_offers_actions_that_exist_and_apply_on_its_screen(mode: str) -> None:
    assert set(keys_of_screen(mode)) <= set(ACTION_OF)
    assert bool(keys_of_screen(mode)) is (mode != "dashboard")
    shown = offered(_state(), ACTIONS, mode)
    assert shown
    plots = mode in {"dashboard", "metrics", "system", "compare"}
    lists = mode == "compare" or not plots  # a comparison has a list of runs beside its plots
    scopes = {"run"} | ({"plots"} if plots else {"ranks"}) | ({"list", "runs"} if lists else set())
    for action in shown:
        assert action.scope in scopes, action.id


def test_the_footer_of_an_ended_run_offers_nothing_that_it_refuses() -> None:
    state = _state(read_only=True)
    for mode in SCREENS:
        assert not any(action.commands for action in offered(state, ACTIONS, mode))


@pytest.mark.parametrize(("columns", "width"), [(1, 90), (2, 56), (3, 60)])
def test_the_help_is_even_columns_that_fit(columns: int, width: int) -> None:
    blocks = blocks_of(_state(), ACTIONS, "", width)
    rows = side_by_side(blocks, columns, width + 3)
    assert all(row.cell_length <= columns * (width + 3) - 3 for row in rows)
    text = "\n".join(row.plain for row in rows)
    assert all(task in text for task in TASKS)
    lines = sum(len(block) + 1 for block in blocks)
    assert len(rows) <= lines / columns + max(len(block) for block in blocks)


def test_a_search_in_the_help_leaves_what_matches() -> None:
    found = blocks_of(_state(), ACTIONS, "learning rate", 80)
    text = "\n".join(row.plain for block in found for row in block)
    assert "change the learning rate" in text
    assert "zoom" not in text
    assert blocks_of(_state(), ACTIONS, "zebra", 80) == []
