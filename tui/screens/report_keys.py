"""The app's keys of the commands that a report recommends.

Reports carry commands only, because every user can bind keys of their own.
"""

from __future__ import annotations

from fttui.engine.protocol.commands import FindCulprits
from fttui.engine.protocol.culprit_text import SEARCHED

from ..actions import key_for, key_of, refusal_of
from ..view_model.app_state import AppState
from ..view_model.incidents.incident import Advice, Incident


def key_of_advice(advice: Advice, incident: Incident | None, state: AppState) -> str | None:
    """Return the key that sends a recommended command now; None without one.

    The key that follows the advice belongs to the first command of the current incident, and the
    key that finds culprits searches the newest anomaly only.
    """
    command = advice.way.typed
    if command is None or refusal_of(command, state) is not None:
        return None
    first = incident is not None and incident.advice[:1] == (advice,)
    if first and incident == state.run.current_incident:
        return key_of("anomaly.recover", state)
    if isinstance(command, FindCulprits):
        searched = [one for one in state.run.anomalies if one.event.kind in SEARCHED]
        return key_of("anomaly.culprit", state) if advice.alarm is searched[-1] else None
    return key_for(command, state)
