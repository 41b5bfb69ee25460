"""The report of an incident as a diagnosis: what happened, a plot, what to do, then the figures.

It is put together from the incident and from the reports of its alarms, which the engine writes as
Markdown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fttui.engine.protocol.commands import FindCulprits, describe_command
from fttui.engine.protocol.culprit_text import CULPRITS_HEADING, SEARCHED
from fttui.engine.protocol.event_parts import RecommendedCommand

from ..view_model.incidents.incident import Advice, Incident
from ..view_model.run_view import RunView
from .incident_text import IncidentAnswer, alarm_lines, answers, ending, headline

_ACTIONS = re.compile(r"^Recommended (commands|actions)", re.IGNORECASE)
_PLOT = re.compile(r"```text\n(.*?)\n```", re.DOTALL)
_SEARCH = (
    "Finds the samples that raise the loss or gradient norm of this step, by repeating it with "
    "some of them replaced. The state of the run is restored afterwards."
)


@dataclass(frozen=True)
class FoldedPart:
    """A part of the figures, which is folded at first."""

    title: str
    markdown: str


@dataclass(frozen=True)
class Diagnosis:
    """The report of an incident, in the order in which it is read."""

    title: str
    """Cause and consequence in one line."""
    state: str
    """How it ended, or its state."""
    what: str
    """What happened, in sentences; empty without a report."""
    plot: str
    """Loss and gradient norm around the alarm as lines of text; empty without a report."""
    actions: tuple[Advice, ...]
    """The commands that can be sent for it, best first."""
    answers: tuple[IncidentAnswer, ...]
    """What was done about it, and what was proposed."""
    sections: tuple[FoldedPart, ...]


def diagnose(run: RunView, incident: Incident, reports: Mapping[str, str]) -> Diagnosis:
    """Return the diagnosis of an incident.

    Args:
        run: the run.
        incident: one of its incidents.
        reports: the alarms' reports in Markdown that could be read, by their names.
    """
    main = reports.get(incident.main.event.report, "")
    text, sections = _parts(main)
    plot = _PLOT.search(text)
    kept = [s for s in sections if not (incident.advice and _ACTIONS.match(s.title))]
    alarms = FoldedPart(f"Alarms ({len(incident.alarms)})", _list(alarm_lines(incident)))
    return Diagnosis(
        title=headline(run, incident),
        state=ending(incident),
        what=" ".join(_PLOT.sub("", text).split()),
        plot=plot[1] if plot else "",
        actions=(*incident.advice, *_search(incident, main)),
        answers=tuple(answers(incident)),
        sections=(*kept, alarms, *_others(incident, reports)),
    )


def _parts(report: str) -> tuple[str, list[FoldedPart]]:
    """Return the text of a report between its title and the first heading, and its sections."""
    first, *rest = re.split(r"^## ", report, flags=re.MULTILINE)
    text = re.sub(r"\A# [^\n]*\n", "", first)
    sections = [part.partition("\n") for part in rest]
    return text, [FoldedPart(title.strip(), body.strip()) for title, _, body in sections]


def _search(incident: Incident, report: str) -> Iterator[Advice]:
    """Yield the search for culprits, unless its result is in the report."""
    searched = [a for a in incident.alarms if a.event.kind in SEARCHED]
    if not searched or CULPRITS_HEADING in report or all(a.event.explained_by for a in searched):
        return
    alarm = incident.main if incident.main in searched else searched[0]
    command = FindCulprits(anomaly=alarm.event.id)
    way = RecommendedCommand(text=describe_command(command), why=_SEARCH, command=command)
    yield Advice(way, alarm)


def _others(incident: Incident, reports: Mapping[str, str]) -> Iterator[FoldedPart]:
    """Yield the reports of the other alarms, with their headings one level lower.

    Recurring peaks, of which there may be many, are left out.
    """
    for alarm in incident.alarms:
        name = alarm.event.report
        if alarm is not incident.main and name in reports and not alarm.event.repeats:
            lower = re.sub(r"^(#+ )", r"##\1", reports[name].strip(), flags=re.MULTILINE)
            yield FoldedPart(f"Report of {alarm.event.id}", lower)


def _list(rows: list[str]) -> str:
    return "\n".join(f"- {row}" for row in rows)


def to_markdown(found: Diagnosis) -> str:
    """Return the diagnosis as Markdown, to read or to paste into an issue."""
    lines = [f"# {found.title}", "", f"**State:** {found.state}."]
    lines += ["", found.what] if found.what else []
    lines += ["", "```text", found.plot, "```"] if found.plot else []
    if found.actions:
        numbered = enumerate(found.actions, 1)
        lines += ["", "## What to do", ""]
        lines += [f"{n}. `{a.way.text}`{': ' if a.way.why else ''}{a.way.why}" for n, a in numbered]
    if found.answers:
        rows = [answer.line for answer in found.answers]
        done = any(answer.label == "done" for answer in found.answers)
        lines += ["", f"## What was {'done' if done else 'proposed or tried'}", "", _list(rows)]
    for section in found.sections:
        lines += ["", f"## {section.title}", "", section.markdown]
    return "\n".join(lines) + "\n"
