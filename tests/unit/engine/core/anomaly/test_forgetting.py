"""The alarm about a model that forgets."""

from __future__ import annotations

from fttui.engine.core.anomaly import Detector
from fttui.engine.core.model_selection import is_better


def rises(detector: Detector, *values: float) -> list[str]:
    found = []
    for step, rise in enumerate(values, 1):
        at = {"step": 10 * step, "eval_loss": 2.0}
        record = {**at, "forgetting": rise, "forgetting_limit": 0.1}
        found += [alert.headline for alert in detector.update(record)]
    return found


def test_a_rise_above_the_limit_is_an_alarm_once_until_it_was_below_again() -> None:
    detector = Detector()
    assert rises(detector, -0.2, 0.1, 0.25, 0.3, 0.05, 0.2) == [
        "rise of the loss on general texts 0.25 is ×2.5 its limit 0.1",
        "rise of the loss on general texts 0.2 is ×2 its limit 0.1",
    ]
    verdicts = [(v.id, v.verdict) for v in detector.take_verdicts()]
    assert verdicts == [("forgetting-30", "recovered")]


def test_less_forgetting_is_better() -> None:
    assert is_better("forgetting.balance", 1.0, 1.1)
    assert is_better("forgetting.rise", -0.1, 0.0)
