"""Alerts of one cause carry the id of the first of them."""

from __future__ import annotations

import msgspec
import pytest

from fttui.engine.core.anomaly import ALARM, INFO, WATCH, Alert
from fttui.engine.core.anomaly.alerts import Again
from fttui.engine.core.incidents import INCIDENT_STEPS, Incidents


def alert(kind: str, step: int, severity: str = ALARM) -> Alert:
    return Alert(id=f"{kind}-{step}", kind=kind, severity=severity, step=step, headline="")


def joined(*alerts: Alert) -> list[str]:
    incidents = Incidents()
    return [incidents.join(one, one.id) for one in alerts]


def test_what_follows_an_alarm_belongs_to_its_incident() -> None:
    assert joined(
        alert("spike", 100), alert("grad_explosion", 100), alert("divergence", 112)
    ) == 3 * ["spike-100"]


def test_every_alert_prolongs_the_incident() -> None:
    steps = [100, 100 + INCIDENT_STEPS, 100 + 2 * INCIDENT_STEPS]
    assert joined(*(alert("spike", step) for step in steps)) == 3 * ["spike-100"]


def test_an_alarm_much_later_is_another_incident() -> None:
    later = 101 + INCIDENT_STEPS
    assert joined(alert("spike", 100), alert("spike", later))[1] == f"spike-{later}"


def test_an_alarm_that_comes_back_after_a_rollback_has_the_same_cause() -> None:
    incidents = Incidents()
    incidents.join(alert("divergence", 100), "divergence-100")
    assert incidents.join(alert("spike", 90), "spike-90-t2") == "divergence-100"


def test_after_the_end_of_an_incident_another_begins() -> None:
    incidents = Incidents()
    incidents.join(alert("spike", 100), "spike-100")
    incidents.join(alert("divergence", 103), "divergence-103")
    assert not incidents.judged("spike-100", "recovered")
    assert incidents.at(104) == "spike-100"
    assert incidents.judged("divergence-103", "recovered")
    assert incidents.at(104) == ""
    assert incidents.join(alert("spike", 104), "spike-104") == "spike-104"


def test_a_verdict_on_what_is_no_alarm_ends_nothing() -> None:
    incidents = Incidents()
    incidents.join(alert("spike", 100, WATCH), "spike-100")
    assert not incidents.judged("spike-100", "recovered")
    assert incidents.at(104) == "spike-100"


def test_an_alarm_that_has_not_recovered_keeps_its_incident_open_for_fifty_steps() -> None:
    incidents = Incidents()
    incidents.join(alert("divergence", 100), "divergence-100")
    assert not incidents.judged("divergence-100", "not recovered")
    assert incidents.join(alert("spike", 140), "spike-140") == "divergence-100"
    later = alert("spike", 141 + INCIDENT_STEPS)
    assert incidents.join(later, later.id) == later.id
    assert not incidents.lasting


def test_an_incident_whose_values_are_back_is_over_when_another_alarm_comes() -> None:
    incidents = Incidents()
    incidents.join(alert("spike", 100), "spike-100")
    incidents.join(alert("grad_explosion", 100), "grad_explosion-100")
    news = [alert("spike", 122)]
    assert not incidents.ends(news, {"grad_explosion-100"})
    assert incidents.ends(news, {"grad_explosion-100", "spike-100"})
    assert incidents.join(news[0], "spike-122") == "spike-122"
    assert not incidents.judged("spike-100", "not recovered")
    assert incidents.judged("spike-122", "recovered")


@pytest.mark.parametrize(
    "news", [[], [alert("divergence", 122)], [alert("spike", 122), alert("collapse", 122)],
             [alert("throughput_drop", 122, WATCH)], [alert("plateau", 122, INFO)]],
)  # fmt: skip
def test_only_alarms_that_begin_at_once_end_an_incident_early(news: list[Alert]) -> None:
    incidents = Incidents()
    incidents.join(alert("spike", 100), "spike-100")
    assert not incidents.ends(news, {"spike-100"})
    assert incidents.at(122) == "spike-100"


def test_an_alarm_that_has_not_recovered_is_not_settled_by_others_that_are_back() -> None:
    incidents = Incidents()
    incidents.join(alert("divergence", 100), "divergence-100")
    incidents.judged("divergence-100", "not recovered")
    incidents.join(alert("spike", 130), "spike-130")
    assert not incidents.ends([alert("spike", 145)], {"spike-130"})


def test_an_alarm_that_was_undone_is_not_waited_for() -> None:
    incidents = Incidents()
    incidents.join(alert("spike", 80), "spike-80")
    incidents.join(alert("spike", 100), "spike-100")
    incidents.undone("spike-100")
    assert incidents.at(90) == "spike-80"
    assert incidents.judged("spike-80", "recovered")


def test_an_incident_of_this_process_stands_before_a_saved_one() -> None:
    going, saved = Incidents(newest="spike-100", step=100), Incidents(newest="spike-80", step=80)
    assert going.or_saved(saved).at(90) == "spike-100"
    assert Incidents().or_saved(saved).at(90) == "spike-80"


def test_one_more_recurring_peak_updates_the_newest_incident_of_its_kind() -> None:
    def peak(step: int, kind: str) -> Alert:
        again = Again(kind=kind, peaks=4, every=100.0)
        return msgspec.structs.replace(alert("unstable", step, INFO), again=again)

    incidents = Incidents()
    assert incidents.join(peak(50, "spike"), "unstable-50") == "unstable-50"
    assert incidents.join(alert("spike", 100), "spike-100") == "spike-100"
    assert incidents.judged("spike-100", "recovered")
    incidents.join(alert("grad_explosion", 300), "grad_explosion-300")
    assert incidents.join(peak(2000, "spike"), "unstable-2000") == "spike-100"
    assert incidents.join(peak(2100, "grad_explosion"), "unstable-2100") == "grad_explosion-300"
    assert incidents.join(alert("spike", 2110), "spike-2110") == "spike-2110"
    assert incidents.join(peak(2200, "spike"), "unstable-2200") == "spike-2110"
    assert incidents.alarms == ["grad_explosion-300", "spike-2110"]


@pytest.mark.parametrize("kind", ["throughput_drop", "vram_leak", "straggler"])
def test_a_slow_machine_is_no_part_of_an_instability(kind: str) -> None:
    assert joined(alert("spike", 100), alert(kind, 101, WATCH), alert("divergence", 110)) == [
        "spike-100",
        f"{kind}-101",
        "spike-100",
    ]


def test_hints_belong_to_no_incident() -> None:
    assert joined(alert("plateau", 100, INFO), alert("nonfinite", 101, INFO)) == ["", ""]


def test_a_warning_begins_the_incident_of_the_alarm_after_it() -> None:
    assert joined(alert("lr_misconfig", 90, WATCH), alert("divergence", 95)) == 2 * [
        "lr_misconfig-90"
    ]


def test_what_one_odd_record_explains_is_an_incident_of_its_own() -> None:
    def odd(kind: str, step: int) -> Alert:
        return msgspec.structs.replace(alert(kind, step, WATCH), explained_by="a.jsonl:3")

    steps = [odd("grad_explosion", 100), odd("spike", 100), alert("spike", 103)]
    steps += [odd("spike", 104), alert("divergence", 110)]
    first, last = "grad_explosion-100", "spike-103"
    assert joined(*steps) == [first, first, last, "spike-104", last]
