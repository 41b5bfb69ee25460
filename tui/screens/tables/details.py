"""Details of the row under the cursor, which wide terminals show beside a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from textual.content import Content

from fttui.engine.protocol.data.sample import SampleRecord

from ...actions import ACTION_OF, key_of, why_not
from ...dialogs.command_cost import given_up
from ...dialogs.incident_text import alarm_lines, answers, ending, headline
from ...dialogs.rank_text import place_of, slow_words, standing_lines
from ...plot.panels import metrics_of
from ...text import format as fmt
from ...view_model.app_state import AppState
from ...view_model.branches import value_on
from ...view_model.incidents.alarm import Anomaly
from ...view_model.ranks.standing import standings
from ...view_model.run_view import CheckpointView, RunView
from ...widgets.text_line import ACCENT, BOLD, DIM, WATCH, Piece, assemble

AROUND = (-3, -2, -1, 0, 1, 2, 3)
"""Steps around an anomaly whose values are shown, as offsets."""
RATES = ("lr", "lr_schedule")
LEARNED = "bold $success"
NAME_ROOM, VALUE_ROOM = 22, 12


def incident(state: AppState, key: str) -> Iterator[Content]:
    """Yield the lines about an incident, whose id is the key; none if it is not known.

    They show cause and consequence, the advice, what was done, its alarms, and the steps around the
    first one.
    """
    found = next((i for i in state.run.incidents if i.id == key), None)
    if found is None:
        return
    yield assemble((headline(state.run, found), BOLD))
    yield assemble((ending(found), WATCH if found.active else DIM))
    yield Content("")
    for index, advice in enumerate(found.advice):
        follows = index == 0 and found is state.run.current_incident
        legal = why_not(ACTION_OF["anomaly.recover"], state) is None
        sent_by = key_of("anomaly.recover", state) if follows and legal else " "
        yield assemble((f"{sent_by} ", ACCENT), advice.way.text)
    name = found.main.event.checkpoint
    good = next((c for c in state.run.checkpoints if c.name == name), None)
    if found.active and good is not None:
        lost = given_up(state, good).words
        yield assemble((f"  a rollback to {good.name} loses {lost} of work", DIM))
    yield from (assemble((f"{a.label}: {a.text}", DIM)) for a in answers(found))
    yield Content("")
    yield from (assemble(line) for line in alarm_lines(found))
    yield Content("")
    yield from _steps_around(state, found.alarms[0])


def _steps_around(state: AppState, alarm: Anomaly) -> Iterator[Content]:
    names = [name for name in ("loss", "grad_norm", "lr") if name in metrics_of(state.run)]
    yield _cells("step", names, BOLD)
    for step in (alarm.step + offset for offset in AROUND):
        if 1 <= step <= state.run.step or step == alarm.step:
            at = [value_on(state.run.branches, alarm.branch, name, step) for name in names]
            values = [_shown(name, value) for name, value in zip(names, at, strict=True)]
            yield _cells(f"{step:,}", values, WATCH if step == alarm.step else "")


def checkpoint(state: AppState, key: str) -> Iterator[Content]:
    """Yield the lines about a checkpoint, whose name is the key; none if it does not exist.

    They show its facts, and every metric at the checkpoint, now, and its change.
    """
    found = next((c for c in state.run.checkpoints if c.name == key), None)
    if found is None:
        return
    yield assemble((found.name, BOLD), f"   {_standing(found)}")
    lost = given_up(state, found).words
    yield assemble(f"timeline {found.timeline} · {fmt.size(found.size_bytes)} · {lost} ago")
    if found.note:
        yield assemble((found.note, DIM))
    yield from _benchmarks(state.run, found)
    yield Content("")
    yield _cells("", ("then", "now", "change"), BOLD)
    now = max(branch.timeline for branch in state.run.branches)
    for name in metrics_of(state.run):
        then = value_at(state.run, name, found.timeline, found.step)
        newest = value_at(state.run, name, now, state.run.step)
        if then is not None and newest is not None:
            change = "–" if then == newest else _shown(name, newest - then, sign=True)
            style = DIM if then == newest else ""
            yield _cells(name, (_shown(name, then), _shown(name, newest), change), style)


def _benchmarks(run: RunView, found: CheckpointView) -> Iterator[Content]:
    """Yield the newest result of each benchmark of a checkpoint, with how it was measured."""
    newest = {one.task: one for one in run.benchmarks if one.checkpoint == found.name}
    for result in newest.values():
        yield Content("")
        for metric, score in result.scores.items():
            yield assemble((f"{result.name_of(metric)} ", BOLD), score.text)
        yield assemble((result.conditions, DIM))


def intervention(state: AppState, key: str) -> Iterator[Content]:
    """Yield the lines about a command, whose id is the key; none if it is not known.

    They show the command, its outcome, issuer and reason, and metrics before and after it.
    """
    found = state.run.interventions.find(key)
    if found is None:
        return
    yield assemble((found.text, BOLD))
    yield assemble(found.outcome())
    yield assemble((f"by {found.issuer}", DIM))
    if why := state.run.interventions.why(found):
        yield assemble(f"reason: {why}")
    if found.seconds is not None:
        yield assemble((f"applied {fmt.duration(found.seconds)} after it was accepted", DIM))
    if found.step is None:
        return
    yield Content("")
    yield _cells("", ("before", "+20 steps", "+100 steps"), BOLD)
    timeline = state.run.timeline
    for name in ("loss~0.9", "grad_norm", "lr"):
        steps = [found.step + offset for offset in (-1, 20, 100)]
        values = [
            value_at(state.run, name, timeline, s) if s <= state.run.step else None for s in steps
        ]
        if any(value is not None for value in values):
            label = name.replace("~", ", ema ")
            yield _cells(label, [_shown(name, value) for value in values])


def sample(state: AppState, key: str) -> Iterator[Content]:
    """Yield the prompt and the text of a generated sample, whose index is the key.

    Without such a sample there are no lines.
    """
    index = int(key)
    if index < len(state.run.samples):
        found = state.run.samples[index]
        yield assemble((found.prompt, DIM))
        yield Content("")
        yield assemble(found.text)


def data(state: AppState, key: str) -> Iterator[Content]:
    """Yield the lines about a row of the data screen; none for a row that shows all there is.

    The key `finding REASON` gives a finding with its remedy, `record N` a record with its targets.
    """
    kind, _, name = key.partition(" ")
    if kind == "finding":
        yield from _finding(state, name)
    elif kind == "record" and int(name) < len(state.data_sample):
        yield from record(state.data_sample[int(name)])


def _finding(state: AppState, name: str) -> Iterator[Content]:
    found = next((one for one in state.run.findings if one.reason == name), None)
    if found is None:
        return
    yield assemble((f"{found.count:,} of {found.total:,} {found.unit} {found.text}", BOLD))
    if found.where:
        yield assemble(found.where)
    if found.remedy:
        yield assemble(f"to avoid it: {found.remedy}")
    yield assemble((f"its name in data.accept: {found.reason}", DIM))


def record(found: SampleRecord) -> Iterator[Content]:
    """Yield the lines of a training record as the model sees it; targets are bold and coloured."""
    yield assemble((found.place, BOLD))
    for note in found.notes:
        yield assemble((note, WATCH))
    if not found.texts:
        yield assemble("this record is not learned")
    for text in found.texts:
        yield Content("")
        yield assemble(
            (f"{text.name}: {text.learned:,} of {text.tokens:,} tokens are targets", DIM)
        )
        spans = [
            (f"{span.text}{span.mark}", LEARNED) if span.learned else span.text
            for span in text.spans
        ]
        more = [(f" … {text.left_out:,} more characters", DIM)] if text.left_out else []
        yield assemble(*spans, *more)


def rank(state: AppState, key: str) -> Iterator[Content]:
    """Yield the lines about a rank, or about the ranks of a node; none if it is not known."""
    ranks = standings(state.run)
    kind, _, number = key.partition(" ")
    found = [one for one in ranks if str(one.node if kind == "node" else one.rank) == number]
    several = len({one.node for one in ranks}) > 1
    for one in found:
        yield assemble((place_of(one, several=several), BOLD))
        yield assemble((one.device or "device not known yet", DIM))
        yield from (assemble((words, WATCH)) for words in slow_words([one]))
        yield from (assemble(line) for line in standing_lines(one))
        yield Content("")


DETAILS: dict[str, Callable[[AppState, str], Iterator[Content]]] = {
    "incident": incident,
    "checkpoint: then and now": checkpoint,
    "intervention": intervention,
    "sample": sample,
    "data": data,
    "rank": rank,
}


def value_at(run: RunView, name: str, timeline: int, step: int) -> float | None:
    """Return a metric at a step of a timeline, or at the nearest earlier step with a value.

    Steps of the timelines that it forked from count too. None if there is no value up to that step,
    or no such timeline.
    """
    on = [index for index, branch in enumerate(run.branches) if branch.timeline == timeline]
    return value_on(run.branches, on[-1], name, step) if on else None


def _shown(name: str, value: float | None, *, sign: bool = False) -> str:
    if value is None:
        return "–"
    mark = "+" if sign and value > 0 and math.isfinite(value) else ""
    if name.endswith("_bytes"):
        return mark + fmt.size(value)
    if name.endswith("_bytes_per_s"):
        return f"{mark}{fmt.size(value)}/s"
    return mark + (fmt.learning_rate(value) if name in RATES else fmt.number(value))


def _standing(found: CheckpointView) -> str:
    kind = "mean of others" if found.mean else "good" if found.good else "△ doubtful"
    words = ["✓ verified", kind, "pinned" if found.pinned else ""]
    return " · ".join(word for word in words if word)


def _cells(name: str, values: Sequence[str], style: str = "") -> Content:
    text = f"{name:<{NAME_ROOM}}" + "".join(f"{value:>{VALUE_ROOM}}" for value in values)
    piece: Piece = (text, style) if style else text
    return assemble(piece)
