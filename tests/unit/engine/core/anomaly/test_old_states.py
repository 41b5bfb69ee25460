"""States of the detector that earlier versions saved."""

from __future__ import annotations

from fttui.engine.core.anomaly import Detector

from .series import kinds, run, series


def test_a_state_of_the_model_before_starts_its_levels_anew_and_judges_again() -> None:
    saved = Detector().state()
    del saved["stability"], saved["rate"]
    saved["last_step"] = 100
    saved["unstable"] = {"loss": {"count": 100}, "zero_losses": 0, "broken": False}
    saved["plateau"] = {"last": [1.0] * 60, "count": 3000, "since": 10, "told": True}
    detector = Detector.from_state(saved)
    records = series(900)[100:]
    records[200]["loss"] = 6.0
    assert [alert.step for alert in run(records, detector) if alert.severity == "alarm"] == [301]
    assert Detector.from_state(detector.state()).state() == detector.state()


def test_a_blow_up_is_told_after_such_a_restart() -> None:
    detector = Detector()
    records = series(60)
    records[40]["loss"] = 50.0
    assert kinds(run(records, detector)) == ["spike"]
