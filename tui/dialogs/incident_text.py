"""Incidents in words: cause and consequence, peak, what was done, how it ended."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from fttui.engine.protocol.commands import Propose, Rollback, recorded_command

from ..text import format as fmt
from ..view_model.branches import value_on
from ..view_model.incidents.alarm import Anomaly
from ..view_model.incidents.fold import METRICS, treats
from ..view_model.incidents.incident import Incident, IncidentState
from ..view_model.incidents.peak import NAMES, MetricPeak, peak_of
from ..view_model.interventions import Intervention, Phase
from ..view_model.run_view import RunView

RAISED_STEPS, RAISED = 20, 1.5
"""A learning rate raised by this factor at most so many steps before is named as the cause."""
KIND_NAMES = {
    "spike": "loss spike",
    "grad_explosion": "gradient explosion",
    "nonfinite": "value that is not finite",
    "dead": "no gradient",
    "throughput_drop": "lower throughput",
    "lr_misconfig": "unusable learning rate",
    "straggler": "slow rank",
    "vram_leak": "memory leak",
    "unstable": "recurring peak",
}


def kind_name(kind: str) -> str:
    """Return the name of a kind of alert, such as `loss spike`."""
    return KIND_NAMES.get(kind, kind.replace("_", " "))


def headline(run: RunView, incident: Incident) -> str:
    """Return cause and consequence in one line.

    Such as `LR ×50 from step 41 (lr scale 50 by ann): loss 4.41 → 94 at step 60`.
    """
    found, what = cause(run, incident), consequence(run, incident)
    if (words := recurrence(incident)) and incident.state is IncidentState.UNSTABLE:
        what = f"{words}; at worst {what}"
        return f"{found}: {what}" if found else f"Unstable: {what}"
    if found:
        return f"{found}: {what}"
    name = kind_name(incident.main.event.kind)
    place = f" at step {incident.main.step:,}"
    return f"{name[:1].upper()}{name[1:]}{place}: {what.removesuffix(place)}"


def cause(run: RunView, incident: Incident) -> str:
    """Return the cause that the journal shows; empty if it shows none."""
    odd = [alarm.event.explained_by for alarm in incident.alarms]
    if all(odd):
        return f"One odd record at step {incident.first_step:,}, {odd[0]}"
    serious = (alarm for alarm in incident.alarms if alarm.event.severity != "info")
    return next(filter(None, (_raised_rate(run, alarm) for alarm in serious)), "")


def _raised_rate(run: RunView, alarm: Anomaly) -> str:
    """Return the newest rise of the learning rate shortly before an alarm; empty without one."""
    for step in range(alarm.step, max(1, alarm.step - RAISED_STEPS), -1):
        now, before = (
            value_on(run.branches, alarm.branch, "lr_scale", s) for s in (step, step - 1)
        )
        if now and before and now / before >= RAISED:
            by = _who_raised(run, step - 1)
            return f"LR ×{fmt.factor(now / before)} from step {step:,}{by}"
    return ""


def _who_raised(run: RunView, step: int) -> str:
    for item in reversed(run.interventions.items):
        if item.text.startswith("lr ") and item.step == step:
            return f" ({item.text} by {short_issuer(item.issuer)})"
    return ""


def consequence(run: RunView, incident: Incident) -> str:
    """Return how far the metric went, such as `loss 4.41 → 94 at step 60`."""
    peak = peak_of(run.branches, incident)
    if peak is None:
        return incident.main.event.headline
    if not math.isfinite(peak.value):
        return f"{peak.metric} {fmt.number(peak.value)} at step {peak.step:,}"
    if METRICS.get(incident.main.event.kind) is None:
        return incident.main.event.headline
    return f"{peak_words(peak)} at step {peak.step:,}"


def peak_words(peak: MetricPeak) -> str:
    """Return a peak as `loss 4.41 → 94`, or `gradient norm 46,680, ×6,720 its usual 6.94`."""
    value = _figure(peak.value)
    if peak.usual is None:
        return f"{peak.metric} {value}"
    if peak.metric == NAMES["loss"] or peak.ratio is None:
        return f"{peak.metric} {_figure(peak.usual)} → {value}"
    return f"{peak.metric} {value}, ×{_figure(peak.ratio)} its usual {_figure(peak.usual)}"


def _figure(value: float) -> str:
    """Return a number with thousands instead of an exponent."""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else fmt.number(value)


def recurrence(incident: Incident) -> str:
    """Return how often the peaks of an incident recur; empty if they do not.

    Such as `9 loss spikes up to step 2,310, one in about 120 steps`.
    """
    newest = incident.repeat
    if newest is None:
        return ""
    event = newest.event
    count = fmt.plural(event.peaks, kind_name(event.repeats))
    return f"{count} up to step {newest.step:,}, one in about {event.every_steps:,.0f} steps"


def short(run: RunView, incident: Incident) -> str:
    """Return an incident in a few words for a list.

    That is its only alarm, or how often its peaks recur, or its peak and the number of alarms.
    """
    if words := recurrence(incident):
        return words
    if len(incident.alarms) == 1:
        return incident.main.event.headline
    return f"{consequence(run, incident)}, {fmt.plural(len(incident.alarms), 'alarm')}"


def short_issuer(issuer: str) -> str:
    """Return an issuer without the machine, such as `ann` for `ann@laptop`."""
    return issuer.split("@")[0] or "unknown"


@dataclass(frozen=True)
class IncidentAnswer:
    """What somebody did about an incident, or proposed."""

    label: str
    """`done`, `proposed`, `sent`, `failed`, `rejected` or `waits`."""
    text: str
    """Who and what, in a sentence."""

    @property
    def line(self) -> str:
        """The sentence, after the label unless it was done."""
        return self.text if self.label == "done" else f"{self.label}: {self.text}"


def answers(incident: Incident) -> Iterator[IncidentAnswer]:
    """Yield what was done about an incident, and what was only proposed or has failed."""
    for item in incident.commands:
        text = item.text.removeprefix("propose ")
        yield IncidentAnswer(
            _label(item), f"{text} by {short_issuer(item.issuer)}: {item.outcome()}"
        )
    if not any(isinstance(i.command, Rollback) or _is_recover(i) for i in incident.commands):
        for back in incident.rollbacks:
            event = back.event
            words = f"rolled back from {event.from_step:,} to {event.to_step:,} by the guard"
            yield IncidentAnswer("done", words)
    if (decision := incident.decision) is not None:
        label = {"act": "done", "propose": "proposed"}.get(decision.decision, "waits")
        yield IncidentAnswer(label, f"{decision.command} by the autopilot".strip())


def _label(item: Intervention) -> str:
    if isinstance(item.command or recorded_command(item.text), Propose):
        return "proposed"
    if item.phase in {Phase.FAILED, Phase.REJECTED}:
        return item.phase.name.lower()
    return "done" if item.phase is Phase.APPLIED else "sent"


def _is_recover(item: Intervention) -> bool:
    return item.text.startswith(("recover", "rollback"))


def ending(incident: Incident) -> str:
    """Return how an incident ended, or its state if it has not."""
    match incident.state:
        case IncidentState.RECOVERED:
            return f"recovered{_recovered_by(incident)}"
        case IncidentState.ABANDONED if incident.rollbacks:
            event = incident.rollbacks[-1].event
            return f"{incident.text}: rolled back from {event.from_step:,} to {event.to_step:,}"
        case IncidentState.OPEN if any(a.verdict == "not recovered" for a in incident.pending):
            return "open: it has not recovered by itself"
        case IncidentState.UNSTABLE:
            return f"unstable: {recurrence(incident)}; each has returned so far"
        case IncidentState.RECOVERING:
            return f"recovering {_after(incident)}; the result is not known yet"
        case _:
            return incident.text


def _recovered_by(incident: Incident) -> str:
    if (passed := incident.probation) is not None:
        return f": passed its probation of {fmt.plural(passed.steps, 'step')}"
    return f" {_after(incident)}"


def _after(incident: Incident) -> str:
    sent = [item for item in incident.commands if treats(item)]
    return f"after {sent[-1].text} by {short_issuer(sent[-1].issuer)}" if sent else "by itself"


def alarm_lines(incident: Incident) -> list[str]:
    """Return a line per alarm: step, severity, headline and verdict."""
    several = len(incident.timelines) > 1
    return [
        f"step {a.step:,}{f' (timeline {a.timeline})' if several else ''}: {a.event.severity} "
        f"{kind_name(a.event.kind)}: {a.event.headline} ({a.verdict or 'no verdict yet'})"
        for a in incident.alarms
    ]
