"""The table of allowed state changes of a run, and the check against it."""

from __future__ import annotations

from ..protocol.states import RunState

_S = RunState
_WORK = frozenset({_S.RUNNING, _S.PAUSED, _S.HALTED})
_BUSY = frozenset({_S.EVALUATING, _S.SAVING, _S.ROLLING_BACK})
_ENDS = frozenset({_S.STOPPING, _S.FINISHED, _S.STOPPED, _S.FAILED, _S.UNSAVED, _S.LOST})
_LIVE_NEXT = _WORK | _BUSY | _ENDS
_RESTART = frozenset({_S.STARTING})

TRANSITIONS: dict[RunState, frozenset[RunState]] = {
    _S.STARTING: _LIVE_NEXT,
    _S.RUNNING: _LIVE_NEXT - {_S.RUNNING},
    _S.PAUSED: _LIVE_NEXT - {_S.PAUSED},
    _S.HALTED: _LIVE_NEXT - {_S.HALTED, _S.FINISHED},
    _S.EVALUATING: (_LIVE_NEXT - {_S.EVALUATING}) | _RESTART,
    _S.SAVING: (_LIVE_NEXT - {_S.SAVING}) | _RESTART,
    _S.ROLLING_BACK: _LIVE_NEXT - {_S.ROLLING_BACK, _S.FINISHED},
    _S.STOPPING: (_ENDS - {_S.STOPPING}) | {_S.SAVING, _S.EVALUATING},
    _S.FINISHED: _RESTART,
    _S.STOPPED: _RESTART,
    _S.FAILED: _RESTART,
    _S.UNSAVED: _RESTART,
    _S.LOST: _RESTART,
}
"""State → states that may follow it.

An evaluation or a save returns to the state it began in, which can be `starting`. An ended run
leaves its state only when a new training process starts.
"""


class IllegalTransition(RuntimeError):
    """A state change that `TRANSITIONS` does not allow, which is a bug of the caller."""


def check_transition(old: RunState, new: RunState) -> None:
    """Check a state change against `TRANSITIONS`.

    Raises:
        IllegalTransition: the change is not allowed; the message names what could follow.
    """
    if new in TRANSITIONS[old]:
        return
    allowed = ", ".join(sorted(state.value for state in TRANSITIONS[old]))
    raise IllegalTransition(
        f"a run that is {old.value} cannot become {new.value}; next can be: {allowed}"
    )
