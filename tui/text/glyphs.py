"""Signs and colours of states and severities, and the ASCII replacement of every sign."""

from __future__ import annotations

from rich.cells import cell_len

from fttui.engine.protocol.states import RunState

LIVE, WATCH, ALARM, CHECKPOINT, ROLLBACK, NOTE = "●", "△", "▲", "◆", "↺", "✎"

STATE_SHAPE: dict[RunState, str] = {
    RunState.STARTING: "◌",
    RunState.RUNNING: "●",
    RunState.PAUSED: "‖",
    RunState.EVALUATING: "◐",
    RunState.SAVING: "◆",
    RunState.ROLLING_BACK: "↺",
    RunState.STOPPING: "◼",
    RunState.FINISHED: "✓",
    RunState.STOPPED: "◼",
    RunState.HALTED: "▲",
    RunState.FAILED: "✗",
    RunState.UNSAVED: "▲",
    RunState.LOST: "?",
}

STATE_COLOUR: dict[RunState, str] = {
    RunState.RUNNING: "$accent",
    RunState.FINISHED: "$success",
    RunState.PAUSED: "$warning",
    RunState.HALTED: "$error",
    RunState.FAILED: "$error",
    RunState.UNSAVED: "$error",
    RunState.LOST: "$error",
}
"""States without an entry are drawn in the plain text colour."""

SEVERITY_SHAPE = {"alarm": ALARM, "watch": WATCH}
SEVERITY_COLOUR = {"alarm": "$error", "watch": "$warning"}

_ASCII = {
    "●": "*", "‖": "=", "◌": "o", "◐": "e", "◆": "#", "◇": "+", "↺": "<", "◼": "#", "✓": "+",
    "✗": "X", "▲": "!", "△": "w", "✎": "n", "×": "x", "→": ">", "←": "<", "↑": "^", "↓": "v",
    "–": "-", "—": "-", "·": ".", "…": "~", "∞": "I", "▸": ">", "▾": "v", "▴": "^", "┄": "-",
    "°": "'", "≥": ">", "≤": "<", "≈": "~", "┤": "|", "┴": "c", "┼": "+", "├": "|", "┬": "+",
    "█": "#", "▇": "#", "▁": ".", "▂": ",", "▃": "-", "▄": "=", "▅": "+", "▆": "*",
    "▌": "|", "▐": "|", "│": "|", "┃": "|", "─": "-", "━": "-",
    "⏎": "<", "␣": "_", "╸": "-", "╺": "-", "✱": "*", "■": "@", "○": "%", "▼": "$", "□": "&",
}  # fmt: skip


def to_ascii(text: str) -> str:
    """Return the text in ASCII, in which each character takes as many cells as before."""
    if text.isascii():
        return text
    return "".join(c if c.isascii() else _ASCII.get(c, _fallback(c)) for c in text)


def _fallback(char: str) -> str:
    if "\u2500" <= char <= "\u257f":
        return "+"
    return "#" if "\u2580" <= char <= "\u259f" else "?" * cell_len(char)
