"""A stop asked for while the model loads ends the process at the next word about loading."""

from __future__ import annotations

import pytest

from fttui.engine.__main__ import StoppedEarly, _stop_while_loading
from fttui.engine.protocol.states import RunState
from fttui.engine.train.event_log import EventLog
from fttui.engine.train.signals import StopSignals


@pytest.mark.parametrize(
    ("signalled", "state", "ranks", "leaves"),
    [
        (1, RunState.STARTING, 1, True),
        (0, RunState.STARTING, 1, False),
        (1, RunState.RUNNING, 1, False),
        (1, RunState.STARTING, 2, False),
    ],
)
def test_only_a_lone_process_that_loads_leaves(
    monkeypatch: pytest.MonkeyPatch, signalled: int, state: RunState, ranks: int, leaves: bool
) -> None:
    monkeypatch.setenv("WORLD_SIZE", str(ranks))
    event_log, signals = EventLog(None), StopSignals()
    _stop_while_loading(event_log, signals)
    event_log.progress("Loading weights", 1, 9)
    event_log.state, signals.count = state, signalled
    event_log.log("info", "no word about loading")
    try:
        event_log.progress("Loading weights", 9, 9)
    except StoppedEarly:
        assert leaves
    else:
        assert not leaves
