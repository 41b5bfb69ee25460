"""Add the app's keys to the commands that an anomaly report recommends.

Reports carry commands only, because every user can bind keys of their own.
"""

from __future__ import annotations

import re
from functools import partial

from fttui.engine.protocol.commands import recorded_command, spec_of

from ..actions import key_for, key_of, refusal
from ..view_model.app_state import AppState
from ..view_model.run_view import Anomaly

_RECOMMENDED = re.compile(r"^(?P<number>\d+)\. `(?P<command>[^`]+)`(?: \[[^\]]*\])?:", re.MULTILINE)
"""A recommended command in a report. Earlier versions wrote a key in brackets after it, which is
replaced."""
_TITLE = re.compile(r"\A# [^`\n]*`(?P<command>[^`\n]+)`")
"""The first line of a report, which names the first recommended command."""


def with_keys(report: str, anomaly: Anomaly, state: AppState) -> str:
    """Return a report in Markdown with the app's key after each command that it can send now."""
    keyed = _RECOMMENDED.sub(partial(_with_key, anomaly=anomaly, state=state), report)
    return _TITLE.sub(partial(_titled, anomaly=anomaly, state=state), keyed)


def _titled(found: re.Match[str], anomaly: Anomaly, state: AppState) -> str:
    key = _key(found["command"], state, first=anomaly is state.run.current_anomaly)
    return found[0] + (f" [{key}]" if key else "")


def _with_key(found: re.Match[str], anomaly: Anomaly, state: AppState) -> str:
    first = found["number"] == "1" and anomaly is state.run.current_anomaly
    key = _key(found["command"], state, first=first)
    return f"{found['number']}. `{found['command']}`{f' [{key}]' if key else ''}:"


def _key(text: str, state: AppState, *, first: bool) -> str | None:
    command = recorded_command(text)
    if command is None or refusal(spec_of(command), state) is not None:
        return None
    return key_of("anomaly.recover", state) if first else key_for(command, state)
