"""The page of all keys, generated from the action table."""

from __future__ import annotations

from collections.abc import Iterator

from fttui.engine.run.reference.tables import row

from ...action_words import by_task
from ...actions import ACTIONS, Action, Scope, shown_key

_INTRO = """\
# Keys

Every action of the app, by task. The id is what you bind a key of your own to ([the
app](../app.md)); actions that send a command work only in the states of the run in which the
[command](commands.md#commands-of-a-run) does. Generated from `tui/actions.py` with `python -m
fttui.tui.cli.reference docs/reference`.
"""
_WHERE: dict[Scope, str] = {
    "run": "everywhere", "plots": "plots", "list": "tables", "runs": "list of runs",
    "ranks": "list of ranks",
}  # fmt: skip
_ASKS = {"no": "", "inline": "asks for a line", "confirm": "asks first"}


def keys_page() -> str:
    """Return the Markdown text of docs/reference/keys.md."""
    return "\n".join((_INTRO, *_sections())).rstrip() + "\n"


def _sections() -> Iterator[str]:
    for task, actions in by_task(ACTIONS):
        yield f"## {task}\n"
        yield "| key | action | id | where | sends |"
        yield "|---|---|---|---|---|"
        for action in actions:
            yield row(*_cells(action))
        yield ""


def _cells(action: Action) -> tuple[str, ...]:
    keys = " ".join(_code(shown_key(key)) for key in action.keys.split(","))
    sent = [f"`{verb}`" for verb in action.verbs]
    sends = ", ".join(part for part in (*sent, _ASKS[action.asks]) if part)
    return keys, action.help, f"`{action.id}`", _WHERE[action.scope], sends


def _code(key: str) -> str:
    return f"`{key}`"
