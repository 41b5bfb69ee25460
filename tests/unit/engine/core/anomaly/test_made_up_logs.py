"""Logs of many courses, optimizers and loggers: calm ones are quiet, blow-ups are found."""

from __future__ import annotations

from random import Random

import pytest

from fttui.engine.core.anomaly import INSTABILITY
from tests.support.training_logs import COURSES, LOGGERS, Log, logs, with_blow_up

from .series import run

LOGS = list(logs(seed=7, length=400))
RATE = 5.0


def alarms(log: Log) -> list[int]:
    """Positions in the log at which an instability is told."""
    steps = {alert.step for alert in run(log.records) if alert.kind in INSTABILITY}
    return [i for i, record in enumerate(log.records) if record["step"] in steps]


def test_calm_logs_keep_to_the_rate_of_false_alarms() -> None:
    told = sum(bool(alarms(log)) for log in LOGS)
    records = sum(len(log.records) for log in LOGS)
    assert told <= RATE * records / 10_000


@pytest.mark.parametrize("logger", LOGGERS)
def test_a_blow_up_is_found_however_the_run_is_logged(logger: str) -> None:
    chosen = [with_blow_up(log, Random(1)) for log in LOGS if log.source.endswith(logger)]
    assert len(chosen) >= len(COURSES)
    missed = []
    for log in chosen:
        assert log.event is not None
        if not any(log.event <= i <= log.event + 5 for i in alarms(log)):
            missed.append(log.source)
    assert len(missed) <= 1, missed


def test_logs_are_the_same_for_the_same_seed() -> None:
    assert [log.records[-1] for log in logs(3, 60)] == [log.records[-1] for log in logs(3, 60)]
