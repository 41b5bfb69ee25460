"""Add the app's keys to the commands that an anomaly report recommends.

Reports carry commands only, because every user can bind keys of their own.
"""

from __future__ import annotations

import re
from functools import partial

from fttui.engine.protocol.commands import (
    FindCulprits,
    describe_command,
    recorded_command,
    spec_of,
)
from fttui.engine.protocol.culprit_text import CULPRITS_HEADING, SEARCHED

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


def culprit_hint(report: str, anomaly: Anomaly, state: AppState) -> str:
    """Return a section for a report with the command that finds the samples behind an anomaly.

    It is empty if anomalies of this kind are not searched, the report has their samples already, or
    the command is refused now. The key is named for the newest such anomaly, which it searches.
    """
    event = anomaly.event
    command = FindCulprits(anomaly=event.id)
    if event.kind not in SEARCHED or CULPRITS_HEADING in report:
        return ""
    if refusal(spec_of(command), state) is not None:
        return ""
    searched = [one for one in state.run.anomalies if one.event.kind in SEARCHED]
    key = key_of("anomaly.culprit", state) if anomaly is searched[-1] else None
    sent = f"`{describe_command(command)}`" + (f" [{key}]" if key else "")
    return (
        f"\n{CULPRITS_HEADING}\n\n{sent} finds the samples that raise the loss or norm of this "
        "step: it repeats the step with parts of them replaced, and puts its own state back.\n"
    )


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
