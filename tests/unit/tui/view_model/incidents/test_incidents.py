"""Alarms of one cause are one incident, and the gravest advice of its alarms is followed."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fttui.engine.protocol.commands import COMMANDS, Recover, ScaleLr
from fttui.engine.protocol.events import (
    AnomalyRaised,
    AnomalyResolved,
    AutopilotDecided,
    ProbationEnded,
)
from fttui.tui.dialogs.incident_text import answers, ending, headline, recurrence, short
from fttui.tui.view_model.incidents.incident import IncidentState, gravity
from fttui.tui.view_model.incidents.peak import peak_of
from fttui.tui.view_model.reducer import apply_many
from fttui.tui.view_model.run_view import RunView
from tests.support.session_double import Script


def view_of(script: Script) -> RunView:
    return apply_many(RunView(), script.records)


def raised(
    script: Script,
    kind: str,
    *ways: str,
    severity: str = "alarm",
    incident: str = "",
    value: float = 9.0,
    baseline: float = 1.4,
) -> AnomalyRaised:
    plain = f"{kind}-{script.step}"
    return AnomalyRaised(
        id=plain if script.timeline == 1 else f"{plain}-t{script.timeline}",
        kind=kind,
        severity=severity,
        headline=f"{kind} of a test",
        value=value,
        baseline=baseline,
        actions=list(ways),
        incident=incident,
        report=plain,
    )


def trained(steps: int = 60) -> Script:
    return Script().start().run().train(steps)


def twins(incident: str = "") -> Script:
    """A spike and a gradient explosion of one step; the milder advice comes last."""
    script = trained(40).checkpoint().train(24)
    script.add(raised(script, "spike", "recover spike-64", "pause", incident=incident))
    return script.add(
        raised(script, "grad_explosion", "lr scale 0.7", "clip 0.5", incident=incident)
    )


def test_the_gravity_of_advice_is_part_of_the_command_table() -> None:
    grave = {spec.verb: spec.gravity for spec in COMMANDS}
    order = ["recover", "rollback", "lr scale", "clip", "pause", "eval"]
    assert [grave[verb] for verb in order] == sorted((grave[v] for v in order), reverse=True)
    assert len({grave[verb] for verb in order}) == len(order)


@pytest.mark.parametrize("incident", ["spike-64", ""], ids=["named", "old journal"])
def test_two_alarms_of_one_step_are_one_incident_with_the_gravest_advice(incident: str) -> None:
    view = view_of(twins(incident))
    assert [(i.id, len(i.alarms)) for i in view.incidents] == [("spike-64", 2)]
    current = view.current_incident
    assert current is not None
    assert current.command == Recover(anomaly="spike-64")
    assert [a.way.text for a in current.advice] == [
        "recover spike-64", "pause", "lr scale 0.7", "clip 0.5",
    ]  # fmt: skip


def test_advice_that_was_followed_is_not_given_again() -> None:
    script = trained(64)
    script.add(raised(script, "grad_explosion", "lr scale 0.7", "rollback step-000040-t1"))
    script.command("lr scale 0.7", "1", "0.7")
    current = view_of(script).current_incident
    assert current is not None
    assert current.state is IncidentState.RECOVERING
    assert [a.way.text for a in current.advice] == ["rollback step-000040-t1"]
    assert [a.line for a in answers(current)] == ["lr scale 0.7 by ann: applied from 65 (1 → 0.7)"]


def test_an_alarm_of_an_abandoned_timeline_is_never_current() -> None:
    script = twins().rollback("step-000040-t1", 40)
    view = view_of(script)
    assert view.current_incident is None, "even before the engine has given its verdict"
    assert view.incidents[0].state is IncidentState.ABANDONED
    assert ending(view.incidents[0]) == "abandoned (timeline 1): rolled back from 64 to 40"
    assert [a.line for a in answers(view.incidents[0])] == [
        "rolled back from 64 to 40 by the guard"
    ]


@pytest.mark.parametrize(
    ("passed", "state"),
    [
        (None, IncidentState.RECOVERING),
        (True, IncidentState.RECOVERED),
        (False, IncidentState.ABANDONED),
    ],
)
def test_a_recovery_is_judged_by_its_probation(passed: bool | None, state: IncidentState) -> None:
    script = twins().rollback("step-000040-t1", 40, skipped=20)
    script.command("recover spike-64", "step 64", "step 40").train(15)
    for name in ("spike-64", "grad_explosion-64"):
        script.add(AnomalyResolved(id=name, verdict="rolled back"))
    if passed is not None:
        script.add(ProbationEnded(anomaly="spike-64", checkpoint="c", passed=passed, steps=15))
    view = view_of(script)
    assert view.incidents[0].state is state
    assert view.current_incident is None


def test_an_incident_goes_on_after_a_rollback_and_a_second_recovery_is_judged_too() -> None:
    """The engine names the anomaly of a probation without the timeline in its id."""
    script = twins().rollback("step-000040-t1", 40)
    script.command("recover spike-64", "step 64", "step 40").train(20)
    script.add(raised(script, "divergence", "recover divergence-60-t2", incident="spike-64"))
    script.add(ProbationEnded(anomaly="spike-64", checkpoint="c", passed=False, steps=20))
    view = view_of(script)
    assert [i.id for i in view.incidents] == ["spike-64"]
    assert view.incidents[0].state is IncidentState.OPEN
    script.rollback("step-000040-t1", 40)
    script.command("recover divergence-60-t2", "step 60", "step 40").train(15)
    assert view_of(script).incidents[0].state is IncidentState.RECOVERING
    script.add(ProbationEnded(anomaly="divergence-60", checkpoint="c", passed=True, steps=15))
    found = view_of(script).incidents[0]
    assert found.state is IncidentState.RECOVERED
    assert ending(found) == "recovered: passed its probation of 15 steps"


def test_an_incident_that_has_not_recovered_stays_open_until_the_loss_is_back() -> None:
    script = trained()
    usual = script._step().loss_or_nan
    script.add(raised(script, "spike", "recover spike-60", value=usual * 6, baseline=usual))
    script.spikes = dict.fromkeys(range(61, 91), usual * 5)
    script.train(30).add(AnomalyResolved(id="spike-60", verdict="not recovered"))
    current = view_of(script).current_incident
    assert current is not None
    assert current.state is IncidentState.OPEN
    assert ending(current) == "open: it has not recovered by itself"
    view = view_of(script.train(25))
    assert view.current_incident is None
    assert view.incidents[0].state is IncidentState.RECOVERED


def test_an_alarm_of_the_machine_is_its_own_incident_and_does_not_outrank_the_loss() -> None:
    script = twins()
    script.add(raised(script, "throughput_drop", "profile 2", severity="watch"))
    view = view_of(script)
    assert [i.id for i in view.incidents] == ["spike-64", "throughput_drop-64"]
    assert view.current_incident is view.incidents[0]
    assert view.incidents[1].state is IncidentState.WATCHED


def test_old_journals_are_grouped_until_all_verdicts_are_in() -> None:
    script = twins().train(30)
    for name in ("spike-64", "grad_explosion-64"):
        script.add(AnomalyResolved(id=name, verdict="recovered"))
    script.add(raised(script, "spike", "pause"))
    assert [i.id for i in view_of(script).incidents] == ["spike-64", "spike-94"]
    far = trained(10)
    far.add(raised(far, "spike")).train(51)
    assert len(view_of(far.add(raised(far, "divergence"))).incidents) == 2


def test_cause_and_consequence_are_the_first_line() -> None:
    script = trained(40).command("lr scale 50", "1", "50")
    script.spikes = {42: 7.0, 43: 90.0}
    script.train(2)
    script.add(raised(script, "spike", "recover spike-42", value=10.6, baseline=4.4))
    view = view_of(script.train(3))
    found = view.incidents[0]
    peak = peak_of(view.branches, found)
    assert peak is not None
    assert (peak.metric, peak.step, peak.usual) == ("loss", 43, 4.4)
    assert peak.ratio == pytest.approx(peak.value / 4.4)
    text = headline(view, found)
    assert text.startswith("LR ×50 from step 41 (lr scale 50 by ann): loss 4.400 → 9")
    assert text.endswith(" at step 43")


def test_a_rate_raised_before_a_later_alarm_is_the_cause() -> None:
    script = trained(20)
    script.add(raised(script, "grad_explosion", "clip 0.5"))
    script.train(20).command("lr scale 50", "1", "50").train(2)
    script.add(raised(script, "spike", "recover spike-42", value=10.6, baseline=4.4))
    view = view_of(script.train(1))
    assert len(view.incidents) == 1
    assert headline(view, view.incidents[0]).startswith("LR ×50 from step 41")


def test_without_a_cause_the_alarm_that_is_followed_is_named() -> None:
    script = trained(20)
    script.add(raised(script, "grad_explosion", "clip 0.5"))
    script.train(20).add(raised(script, "spike", "recover spike-40", value=10.6, baseline=4.4))
    view = view_of(script.train(1))
    assert headline(view, view.incidents[0]).startswith("Loss spike at step 40: loss 4.400 → ")


def test_a_peak_that_is_not_finite_is_above_all_others() -> None:
    script = trained()
    script.add(raised(script, "nonfinite", "recover nonfinite-60", value=math.nan))
    script.step += 1
    script.add(msgspec.structs.replace(script._step(), loss=math.nan))
    view = view_of(script.train(2))
    assert headline(view, view.incidents[0]).endswith("at step 60: loss NaN")


def unstable(script: Script, peaks: int, every_steps: float = 40.0) -> AnomalyRaised:
    """One more of the peaks that recur after the spike of step 60."""
    event = raised(script, "unstable", "lr scale 0.7", severity="info", incident="spike-60")
    return msgspec.structs.replace(event, repeats="spike", peaks=peaks, every_steps=every_steps)


def spiking() -> Script:
    """A spike that recovered, then two more peaks, the fifth of them at step 180."""
    script = trained().add(raised(trained(), "spike", "recover spike-60", incident="spike-60"))
    script.train(40).add(AnomalyResolved(id="spike-60", verdict="recovered"))
    script.add(unstable(script, 4)).train(80)
    return script.add(unstable(script, 5))


def test_peaks_that_recur_are_one_incident_with_their_count_and_last_step() -> None:
    view = view_of(spiking())
    (found,) = view.incidents
    assert (found.id, found.state, found.text) == ("spike-60", IncidentState.UNSTABLE, "unstable")
    assert (found.severity, found.main.event.kind, found.last_step) == ("watch", "spike", 180)
    assert found is view.current_incident
    assert found.advice == ()
    assert recurrence(found) == "5 loss spikes up to step 180, one in about 40 steps"
    assert short(view, found) == recurrence(found)
    assert ending(found) == f"unstable: {recurrence(found)}; each has returned so far"
    assert headline(view, found).startswith(f"Unstable: {recurrence(found)}; at worst loss ")


def test_a_new_alarm_comes_before_an_unstable_state() -> None:
    script = spiking()
    script.add(raised(script, "divergence", "recover divergence-180", incident="divergence-180"))
    view = view_of(script)
    assert [i.id for i in view.incidents] == ["spike-60", "divergence-180"]
    assert view.current_incident is view.incidents[1]


def test_an_unstable_state_is_over_when_a_peak_is_long_overdue() -> None:
    """The seventh peak is due after two mean distances; three more without it end the state."""
    script = spiking().train(5 * 40)
    assert view_of(script).incidents[0].state is IncidentState.UNSTABLE
    view = view_of(script.train(1))
    assert view.incidents[0].state is IncidentState.RECOVERED
    assert view.current_incident is None


def test_a_recurring_peak_that_has_not_recovered_is_open() -> None:
    script = spiking()
    script.add(AnomalyResolved(id="unstable-180", verdict="not recovered"))
    found = view_of(script).incidents[0]
    assert [a.event.id for a in found.pending] == ["unstable-180"]
    assert found.state is IncidentState.WATCHED


def test_what_the_autopilot_decided_belongs_to_the_incident() -> None:
    script = twins()
    decided = AutopilotDecided(anomaly="spike-64", decision="propose", command="recover spike-64")
    found = view_of(script.add(decided)).incidents[0]
    assert [a.line for a in answers(found)] == ["proposed: recover spike-64 by the autopilot"]


def test_a_change_without_an_alarm_belongs_to_no_incident() -> None:
    script = trained().command("lr scale 0.5", "1", "0.5")
    script.add(raised(script, "plateau", "eval", severity="info")).command("clip 0.5", "1", "0.5")
    assert {item.incident for item in view_of(script).interventions} == {""}


ADVICE = ("recover spike-1", "rollback last", "stop", "lr scale 0.7", "clip 0.5", "pause", "eval")
EVENTS = st.lists(
    st.one_of(
        st.tuples(
            st.just("raise"),
            st.sampled_from(["spike", "divergence", "grad_explosion", "nonfinite", "vram_leak"]),
            st.sampled_from(["alarm", "watch", "info"]),
            st.sampled_from(ADVICE),
        ),
        st.tuples(st.just("resolve"), st.sampled_from(["recovered", "not recovered", "undecided"])),
        st.tuples(st.just("train"), st.integers(1, 60)),
        st.tuples(st.just("rollback"), st.integers(0, 100)),
        st.tuples(st.just("send"), st.sampled_from(["lr scale 0.7", "recover", "clip 0.5"])),
    ),
    max_size=14,
)


def played(happened: list[tuple[object, ...]]) -> Script:
    script = trained(3)
    for what in happened:
        ids = [r.event.id for r in script.records if isinstance(r.event, AnomalyRaised)]
        match what:
            case ("raise", str(kind), str(severity), str(way)):
                script.add(raised(script, kind, way, severity=severity))
            case ("resolve", str(verdict)) if ids:
                script.add(AnomalyResolved(id=ids[-1], verdict=verdict))
            case ("train", int(steps)):
                script.train(steps)
            case ("rollback", int(share)):
                script.rollback("step-000001-t1", max(1, script.step * share // 100))
            case ("send", str(command)):
                script.command(command)
            case _:
                pass
    return script


@given(EVENTS)
def test_one_incident_is_current_and_its_gravest_advice_wins(
    happened: list[tuple[object, ...]],
) -> None:
    view = view_of(played(happened))
    grouped = [alarm for incident in view.incidents for alarm in incident.alarms]
    assert sorted(map(id, grouped)) == sorted(map(id, view.anomalies)), "each alarm is in one"
    current = view.current_incident
    active = [incident for incident in view.incidents if incident.active]
    assert (current is None) == (not active)
    if current is None:
        return
    assert sum(incident is current for incident in view.incidents) == 1
    assert all(a.branch == len(view.branches) - 1 or a.step <= view.step for a in current.pending)
    assert not any(a.verdict in {"recovered", "rolled back"} for a in current.pending)
    order = ("info", "watch", "alarm")
    assert order.index(current.severity) == max(order.index(i.severity) for i in active)
    applied = {(c.text, c.time) for c in current.commands}
    firsts = [
        gravity(ways[0])
        for a in current.pending
        if (ways := [w for w in a.event.ways if not any(
            text == w.text and (at or 0.0) >= a.time for text, at in applied)])
    ]  # fmt: skip
    assert (gravity(current.advice[0].way) if current.advice else None) == max(firsts, default=None)


def test_a_change_after_an_alarm_belongs_to_its_incident() -> None:
    script = twins().train(1).command("lr scale 0.5", "1", "0.5")
    sent = view_of(script).interventions.items[-1]
    assert isinstance(sent.command, ScaleLr)
    assert sent.incident == "spike-64"


def test_a_learning_rate_above_its_schedule_is_no_remedy() -> None:
    script = trained(40)
    script.add(raised(script, "grad_explosion", "clip 0.5"))
    view = view_of(script.command("lr scale 45", "0.9", "45"))
    current = view.current_incident
    assert current is not None
    assert (current.state, list(answers(current))) == (IncidentState.OPEN, [])
    lowered = view_of(script.command("lr scale 0.5", "45", "0.5")).current_incident
    assert lowered is not None
    assert lowered.state is IncidentState.RECOVERING


def test_a_raised_learning_rate_is_no_cause_of_a_plateau() -> None:
    script = trained(40).command("lr scale 50", "1", "50").train(3)
    hint = raised(script, "plateau", "eval", severity="info", incident="plateau-43")
    found = view_of(script.add(hint)).incidents[-1]
    assert headline(view_of(script), found) == "Plateau at step 43: plateau of a test"
