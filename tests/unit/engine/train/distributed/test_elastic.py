from __future__ import annotations

from fttui.engine.train.distributed.elastic import LaunchAttempt


def test_attempts_as_torchrun_counts_them() -> None:
    assert not LaunchAttempt.of({}).repeated
    assert not LaunchAttempt.of({}).may_repeat
    first = {"TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "1"}
    assert LaunchAttempt.of(first).may_repeat
    last = LaunchAttempt.of(first | {"TORCHELASTIC_RESTART_COUNT": "1"})
    assert last.repeated
    assert not last.may_repeat
